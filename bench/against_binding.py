"""Decode and cold prefill against llama-cpp-python's own ``Llama``: same model, threads and batch, one run.

    python bench/against_binding.py [--passes 5] [--threads N]

Ours and the peer take turns, each pass in a process of its own with nothing else alive: two programs with
ggml's spinning threads on one machine slow each other down many times. Prints tokens a second and the ratio
ours / peer, pass by pass and as a median. The promise is at least 0.97 for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from demo_model import demo_model_path
from onceread.engine.config import default_threads

SENTENCE = "Sailors followed fires on hills, and every village kept its own watch over the sea. "
CTX = 4096


def rates(first: list[float], start: float, n_prompt: int) -> dict[str, float]:
    """Tokens a second of prefill and decode from the times at which tokens appeared."""
    return {"prefill": n_prompt / (first[0] - start), "decode": (len(first) - 1) / (first[-1] - first[0])}


def ours(kind: str, threads: int, n_prefill: int, n_decode: int) -> float:
    from onceread.engine.engine import Engine, EngineConfig
    from onceread.engine.request import Request, TextEvent
    from onceread.native.model import Model
    from onceread.native.params import SamplingParams

    def run(engine: Engine, prompt: list[int], n: int) -> dict[str, float]:
        start = time.perf_counter()
        handle = engine.submit(Request(tuple(prompt), SamplingParams(temperature=0), n, ignore_eos=True))
        times = [time.perf_counter() for event in handle if isinstance(event, TextEvent)]
        return rates(times, start, len(prompt))

    with Model.load(demo_model_path()) as model:
        tokens = model.vocab.tokenize(SENTENCE * 300, add_special=True, parse_special=True)
        with Engine(model, EngineConfig(ctx_size=CTX, threads=threads)) as engine:
            n_prompt, n_reply = (n_prefill, 2) if kind == "prefill" else (16, n_decode)
            return run(engine, tokens[:n_prompt], n_reply)[kind]


def peer(kind: str, threads: int, n_prefill: int, n_decode: int) -> float:
    from llama_cpp import Llama
    from llama_cpp import llama_cpp as lib

    from onceread.native.backend import extra_buffers_safe

    if not extra_buffers_safe():  # the same precaution for both, see docs/threads.md
        plain = lib.llama_model_default_params

        def without_extra_buffers() -> Any:
            params = plain()
            params.use_extra_bufts = False
            return params

        lib.llama_model_default_params = without_extra_buffers
    llama = Llama(
        str(demo_model_path()), n_ctx=CTX, n_batch=512, n_ubatch=512, n_threads=threads,
        n_threads_batch=threads, flash_attn=True, verbose=False,
    )  # fmt: skip

    def run(prompt: list[int], n: int) -> dict[str, float]:
        start = time.perf_counter()
        times = []
        for _token in llama.generate(prompt, temp=0.0, reset=True):
            times.append(time.perf_counter())
            if len(times) == n:
                return rates(times, start, len(prompt))
        raise RuntimeError("the peer ended by itself")

    tokens = llama.tokenize((SENTENCE * 300).encode(), add_bos=True, special=True)
    run(tokens[-8:], 2)  # its first decode pages the weights in, as our engine's start does
    n_prompt, n_reply = (n_prefill, 2) if kind == "prefill" else (16, n_decode)
    return run(tokens[:n_prompt], n_reply)[kind]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--prefill", type=int, default=2000, help="tokens of the cold prompt")
    parser.add_argument("--decode", type=int, default=128, help="tokens of the reply")
    parser.add_argument("--only", choices=["ours", "peer"], help="one pass of one side")
    parser.add_argument(
        "--kind", choices=["prefill", "decode"], default="decode", help="what --only measures"
    )
    args = parser.parse_args()
    if args.only:
        side = ours if args.only == "ours" else peer
        print(json.dumps(side(args.kind, args.threads, args.prefill, args.decode)))
        return
    print(f"{demo_model_path().name}, {args.threads} threads, batch 512, flash attention, greedy")
    passes: list[dict[str, dict[str, float]]] = []
    for i in range(args.passes):
        measured: dict[str, dict[str, float]] = {}
        for side_name in ("ours", "peer") if i % 2 else ("peer", "ours"):
            command = [sys.executable, __file__, "--only", side_name, "--threads", str(args.threads)]
            command += ["--prefill", str(args.prefill), "--decode", str(args.decode)]
            measured[side_name] = {
                kind: json.loads(subprocess.check_output([*command, "--kind", kind]))
                for kind in ("prefill", "decode")
            }
        passes.append(measured)
        print(f"pass {i + 1}: " + "   ".join(line(kind, [measured]) for kind in ("prefill", "decode")))
    print("median: " + "   ".join(line(kind, passes) for kind in ("prefill", "decode")))


def line(kind: str, passes: list[dict[str, dict[str, float]]]) -> str:
    a = statistics.median(p["ours"][kind] for p in passes)
    b = statistics.median(p["peer"][kind] for p in passes)
    ratio = statistics.median(p["ours"][kind] / p["peer"][kind] for p in passes)
    return f"{kind} {a:6.1f} : {b:6.1f} tokens/s = {ratio:.3f}"


if __name__ == "__main__":
    main()
