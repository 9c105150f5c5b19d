"""Our own work for each decoded token: everything outside llama_decode and the C sampler.

    python bench/overhead.py [--streams 1 2 4] [--tokens 200]

Prints, for each number of streams decoded together, microseconds a token: in llama_decode, in the sampler,
and in our Python. The promise is under 200 µs for the last.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from demo_model import demo_model_path
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, gather
from onceread.engine.scheduler import Scheduler
from onceread.native import context as context_module
from onceread.native import samplers as samplers_module
from onceread.native.model import Model
from onceread.native.params import SamplingParams

PROMPT = "The keeper of the lighthouse wrote in his book that"


class TimedLib:
    """llama.cpp's functions, with the time spent in some of them added up."""

    def __init__(self, lib: Any, names: set[str]) -> None:
        self._lib = lib
        self.seconds = 0.0
        for name in names:
            setattr(self, name, self._timed(getattr(lib, name)))

    def _timed(self, function: Any) -> Any:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - start
            return result

        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    decode = TimedLib(context_module.lib, {"llama_decode"})
    sample = TimedLib(samplers_module.lib, {"llama_sampler_sample"})
    context_module.lib = decode  # type: ignore[attr-defined]
    samplers_module.lib = sample  # type: ignore[attr-defined]
    turns = 0.0
    plain_turn = Scheduler.turn

    def timed_turn(self: Scheduler) -> bool:
        nonlocal turns
        start = time.perf_counter()
        worked = plain_turn(self)
        turns += time.perf_counter() - start
        return worked

    Scheduler.turn = timed_turn  # type: ignore[method-assign]
    with Model.load(demo_model_path()) as model, Engine(model, EngineConfig(ctx_size=4096)) as engine:
        prompt = tuple(model.vocab.tokenize(PROMPT, add_special=True, parse_special=True))
        print(
            f"{'streams':>7}  {'llama_decode':>12}  {'C sampler':>9}  {'ours':>6}   µs a token, median of {args.passes}"
        )
        for streams in args.streams:
            rows = []
            for seed in range(args.passes + 1):
                before = (decode.seconds, sample.seconds, turns)
                request = Request(
                    prompt, SamplingParams(seed=seed), max_tokens=args.tokens, n=streams, ignore_eos=True
                )
                done = gather(engine.submit(request)).usage.completion_tokens
                in_decode = decode.seconds - before[0]
                in_sampler = sample.seconds - before[1]
                ours = turns - before[2] - in_decode - in_sampler
                rows.append([1e6 * s / done for s in (in_decode, in_sampler, ours)])
            median = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
            print(f"{streams:>7}  {median[0]:>12.0f}  {median[1]:>9.0f}  {median[2]:>6.0f}")


if __name__ == "__main__":
    main()
