"""llama-cpp-python: its server with its cache in RAM or on disk, and its ``Llama`` inside a program."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onceread.bench.peers.contract import GREEDY, Answer, Peer, Running, Setting, Stopwatch
from onceread.bench.peers.http import HttpRunning
from onceread.bench.peers.process import Child, wait_until
from onceread.bench.peers.venvs import python_says, venv_python
from onceread.bench.workloads.contract import Message

_STARTER = Path(__file__).parent.parent / "starters" / "binding.py"
_CACHE_BYTES = 6 * 2**30
_FORBIDDEN = -1000.0


def _options(setting: Setting) -> dict[str, Any]:
    """Greedy, no penalty that others don't have, and no end of a reply before its length."""
    return {
        **GREEDY,
        "repeat_penalty": 1.0,
        "logit_bias": {str(token): _FORBIDDEN for token in setting.eog},
    }


class _Binding(Peer):
    def __init__(self) -> None:
        self._python: Path | None = None

    def prepare(self, work: Path) -> None:
        version = importlib.metadata.version("llama-cpp-python")  # the same build of llama.cpp as ours
        self._python = venv_python(work, "llama-cpp-python", [f"llama-cpp-python[server]=={version}"])

    def version(self) -> str:
        assert self._python is not None
        return python_says(self._python, str(_STARTER), "info")


class BindingServer(_Binding):
    """``python -m llama_cpp.server``. ``cache``: ``ram`` or ``disk``."""

    def __init__(self, cache: str) -> None:
        super().__init__()
        self.name = f"binding-server-{cache}"
        self.about = (
            f"llama_cpp.server, cache {cache} of {_CACHE_BYTES >> 30} GiB, no interruption of requests"
        )
        self._cache = cache

    def start(self, setting: Setting, folder: Path) -> Running:
        port = _free_port()
        counts = folder / "counts"
        arguments = {
            "model": setting.model, "host": "127.0.0.1", "port": port, "n_ctx": setting.ctx,
            "n_batch": setting.batch, "n_ubatch": min(512, setting.batch), "n_threads": setting.threads,
            "n_threads_batch": setting.threads, "flash_attn": str(setting.flash_attn == "on").lower(),
            "cache": "true", "cache_type": self._cache, "cache_size": _CACHE_BYTES, "interrupt_requests": "false",
            "verbose": "false",
        }  # fmt: skip
        command = [
            str(self._python),
            str(_STARTER),
            "server",
            str(counts),
            "0" if setting.extra_buffers else "1",
        ]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        child = Child(command, folder / "server.log", cwd=folder)
        child.drain()
        running = _RunningServer(child, port, counts, folder, _options(setting))
        wait_until(running.is_up, 300.0, child)
        return running


class _RunningServer(HttpRunning):
    def __init__(self, child: Child, port: int, counts: Path, folder: Path, options: dict[str, Any]) -> None:
        super().__init__(f"http://127.0.0.1:{port}", **options)
        self._child = child
        self._counts = counts
        self._lock = threading.Lock()
        self._started = self._open = 0  # requests
        self.pid = child.pid
        self.folder = folder / ".cache"

    def is_up(self) -> bool:
        try:
            return bool(self.get("/v1/models"))
        except (OSError, http.client.HTTPException):
            return False

    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        """What a request cost is the difference of two totals, so only where no other one ran meanwhile."""
        with self._lock:
            alone = self._open == 0
            self._open += 1
            self._started += 1
            mine = self._started
        before = self._totals()
        answer = super().answer(messages, reply)
        with self._lock:
            self._open -= 1
            alone = alone and self._started == mine
        if alone and answer.error is None:
            after = self._totals()
            answer.prompt_tokens, answer.evaluated = after[0] - before[0], after[1] - before[1]
        return answer

    def counted(self) -> int | None:
        return self._totals()[1]

    def stop(self) -> None:
        self._child.stop()

    def _totals(self) -> tuple[int, int]:
        prompt, evaluated = self._counts.read_text().split()
        return int(prompt), int(evaluated)


class BindingInside(_Binding):
    """``llama_cpp.Llama`` in a program of its own, which this one talks to through pipes."""

    name = "binding"
    about = "llama_cpp.Llama in process, no cache but its own context"

    def start(self, setting: Setting, folder: Path) -> Running:
        given = {
            "model": str(setting.model), "ctx": setting.ctx, "threads": setting.threads,
            "batch": setting.batch, "extra_buffers": setting.extra_buffers,
            "flash_attn": setting.flash_attn == "on",
        }  # fmt: skip
        child = Child(
            [str(self._python), str(_STARTER), "inside", json.dumps(given)], folder / "server.log", cwd=folder
        )
        child.wait_for("READY")
        return _RunningInside(child, _options(setting))


class _RunningInside(Running):
    def __init__(self, child: Child, options: dict[str, Any]) -> None:
        self._child = child
        self._options = options
        self._evaluated = 0
        self._lock = threading.Lock()  # it answers one at a time
        self.pid = child.pid

    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        watch = Stopwatch()
        request = json.dumps({"messages": list(messages), "max_tokens": reply, **self._options})
        with self._lock:
            try:
                self._child.say(request)
            except OSError:
                return watch.done(f"it is gone: {self._child.last_words()}")
            while line := self._child.hear():
                said = json.loads(line)
                if "text" in said:
                    watch.piece(said["text"])
                elif "done" in said:
                    done = said["done"]
                    self._evaluated += done["evaluated"]
                    watch.answer.prompt_tokens, watch.answer.evaluated = (
                        done["prompt_tokens"],
                        done["evaluated"],
                    )
                    watch.answer.completion_tokens = done["completion_tokens"]
                    return watch.done()
                else:
                    return watch.done(said["error"])
        return watch.done(f"it is gone: {self._child.last_words()}")

    def counted(self) -> int | None:
        return self._evaluated

    def stop(self) -> None:
        self._child.stop(terminate=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
