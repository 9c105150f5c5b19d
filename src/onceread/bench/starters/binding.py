"""Starts llama-cpp-python: its server, or its ``Llama`` in this process, in an environment of its own.

Run by file, never imported:

    python binding.py info
    python binding.py server COUNTS NO_EXTRA_BUFFERS [arguments of llama_cpp.server ...]
    python binding.py inside '{"model": ..., ...}'

``Llama`` does not say how much of a prompt it computed, so it is counted here: the tokens of the first ``eval`` of
each request. COUNTS is a file that always holds the totals: prompt tokens, and those that were computed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import Llama
from llama_cpp import llama_cpp as lib


class Counts:
    """Prompt tokens of all requests so far."""

    def __init__(self, file: Path | None = None) -> None:
        self.prompt = self.evaluated = 0
        self._file = file
        self._first = False
        binding: Any = Llama
        generate, evaluate = binding.generate, binding.eval

        def counting_generate(llama: Any, tokens: Any, *args: Any, **more: Any) -> Any:
            self.prompt += len(tokens)
            self._first = True
            return generate(llama, tokens, *args, **more)

        def counting_eval(llama: Any, tokens: Any) -> Any:
            if self._first:
                self._first = False
                self.evaluated += len(tokens)
                self._write()
            return evaluate(llama, tokens)

        binding.generate, binding.eval = counting_generate, counting_eval
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            self._file.write_text(f"{self.prompt} {self.evaluated}\n")


def without_extra_buffers() -> None:
    plain = lib.llama_model_default_params

    def params() -> Any:
        made = plain()
        made.use_extra_bufts = False
        return made

    lib.llama_model_default_params = params


def described() -> str:
    system = lib.llama_print_system_info().decode(errors="replace").strip(" |")
    return f"llama-cpp-python {llama_cpp.__version__}: {system}"


def serve(counts_file: str, plain: str, arguments: list[str]) -> None:
    Counts(Path(counts_file))
    if plain == "1":
        without_extra_buffers()
    sys.argv = ["llama_cpp.server", *arguments]
    from llama_cpp.server import __main__ as server

    server.main()  # type: ignore[no-untyped-call]


def inside(given: dict[str, Any]) -> None:
    """A request a line on standard input, its pieces as lines on standard output."""
    counts = Counts()
    if not given["extra_buffers"]:
        without_extra_buffers()
    llama: Any = Llama(
        given["model"], n_ctx=given["ctx"], n_batch=given["batch"], n_ubatch=min(512, given["batch"]),
        n_threads=given["threads"], n_threads_batch=given["threads"], flash_attn=given["flash_attn"],
        verbose=False,
    )  # fmt: skip
    llama.eval([llama.token_bos()])  # pages the weights in, as a server's start does
    llama.reset()
    print("READY", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        before, n = (counts.prompt, counts.evaluated), 0
        try:
            for chunk in llama.create_chat_completion(**request, stream=True):
                text = chunk["choices"][0]["delta"].get("content")
                if text:
                    n += 1
                    print(json.dumps({"text": text}), flush=True)
            done = {"prompt_tokens": counts.prompt - before[0], "evaluated": counts.evaluated - before[1]}
            print(json.dumps({"done": {**done, "completion_tokens": n}}), flush=True)
        except Exception as error:  # noqa: BLE001 - the benchmark goes on, and counts it
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if sys.argv[1] == "info":
    print(described())
elif sys.argv[1] == "server":
    serve(sys.argv[2], sys.argv[3], sys.argv[4:])
else:
    inside(json.loads(sys.argv[2]))
