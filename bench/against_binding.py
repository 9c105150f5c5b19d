"""Decode and cold prefill against llama-cpp-python's own ``Llama``: same model, threads and batch, one run.

    python bench/against_binding.py [--passes 5] [--threads N]

Ours and the peer take turns, so that a machine whose speed drifts treats both alike. Prints tokens a second
and the ratio ours / peer, pass by pass and as a median. The promise is at least 0.97 for both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from llama_cpp import Llama

from demo_model import demo_model_path
from onceread.engine.config import default_threads
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, TextEvent
from onceread.native.library import extra_buffers_safe
from onceread.native.model import Model
from onceread.native.params import SamplingParams

SENTENCE = "Sailors followed fires on hills, and every village kept its own watch over the sea. "
GREEDY = SamplingParams(temperature=0)


def ours(engine: Engine, prompt: list[int], max_tokens: int) -> tuple[float, float]:
    """(seconds to the first token, seconds from there to the last)."""
    start = time.perf_counter()
    handle = engine.submit(Request(tuple(prompt), GREEDY, max_tokens, ignore_eos=True))
    times = [time.perf_counter() for event in handle if isinstance(event, TextEvent)]
    return times[0] - start, times[-1] - times[0]


def theirs(llama: Llama, prompt: list[int], max_tokens: int) -> tuple[float, float]:
    start = time.perf_counter()
    times = []
    for token in llama.generate(prompt, temp=0.0, reset=True):
        times.append(time.perf_counter())
        if len(times) == max_tokens:
            break
        del token
    return times[0] - start, times[-1] - times[0]


def compare(name: str, tokens: int, passes: int, a: Callable[[], float], b: Callable[[], float]) -> None:
    rates: list[tuple[float, float]] = []
    for i in range(passes + 1):
        pair = [0.0, 0.0]
        for which in (0, 1) if i % 2 else (1, 0):
            time.sleep(0.3)  # let the other's spinning workers fall asleep
            pair[which] = tokens / (a, b)[which]()
        if i:
            rates.append((pair[0], pair[1]))
            print(
                f"{name:>8} {i}: ours {pair[0]:7.1f}  peer {pair[1]:7.1f} tokens/s  ratio {pair[0] / pair[1]:.3f}"
            )
    ratio = statistics.median(x / y for x, y in rates)
    print(
        f"{name:>8}  : ours {statistics.median(x for x, _ in rates):7.1f}  "
        f"peer {statistics.median(y for _, y in rates):7.1f} tokens/s  ratio {ratio:.3f} (median)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--prefill", type=int, default=2000, help="tokens of the cold prompt")
    parser.add_argument("--decode", type=int, default=128)
    args = parser.parse_args()
    path = demo_model_path()
    print(f"{path.name}, {args.threads} threads, batch 512, flash attention auto, greedy")
    peer: Any = Llama(
        str(path), n_ctx=4096, n_batch=512, n_ubatch=512, n_threads=args.threads,
        n_threads_batch=args.threads, verbose=False, flash_attn=True, use_mmap=True,
    )  # fmt: skip
    config = EngineConfig(ctx_size=4096, threads=args.threads)
    with Model.load(path) as model, Engine(model, config) as engine:
        tokens = model.vocab.tokenize(SENTENCE * 300, add_special=True, parse_special=True)
        round_number = iter(range(1000))

        def fresh(n: int) -> list[int]:
            # A first token of its own makes every prompt new to both.
            return [1000 + next(round_number), *tokens[: n - 1]]

        if extra_buffers_safe():
            compare(
                "prefill", args.prefill, args.passes,
                lambda: ours(engine, fresh(args.prefill), 1 + 1)[0],
                lambda: theirs(peer, fresh(args.prefill), 1)[0],
            )  # fmt: skip
            compare(
                "decode", args.decode - 1, args.passes,
                lambda: ours(engine, fresh(16), args.decode)[1],
                lambda: theirs(peer, fresh(16), args.decode)[1],
            )  # fmt: skip
        else:
            print("the binding was built with AMX and its Llama would use it unasked; see docs/threads.md")
    peer.close()


if __name__ == "__main__":
    main()
