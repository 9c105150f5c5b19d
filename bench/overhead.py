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
        self.plain = lib
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
        return getattr(self.plain, name)


class Overhead:
    """Times the scheduler's turns, and what of them passes in llama.cpp, while the block runs."""

    def __enter__(self) -> Overhead:
        self._decode = TimedLib(context_module.lib, {"llama_decode"})
        self._sample = TimedLib(samplers_module.lib, {"llama_sampler_sample"})
        context_module.lib = self._decode  # type: ignore[attr-defined]
        samplers_module.lib = self._sample  # type: ignore[attr-defined]
        self._turns = 0.0
        self._plain_turn = plain_turn = Scheduler.turn

        def timed_turn(scheduler: Scheduler) -> bool:
            start = time.perf_counter()
            worked = plain_turn(scheduler)
            self._turns += time.perf_counter() - start
            return worked

        Scheduler.turn = timed_turn  # type: ignore[method-assign]
        return self

    def __exit__(self, *raised: object) -> None:
        Scheduler.turn = self._plain_turn  # type: ignore[method-assign]
        context_module.lib = self._decode.plain  # type: ignore[attr-defined]
        samplers_module.lib = self._sample.plain  # type: ignore[attr-defined]

    def of_reply(
        self, engine: Engine, model: Model, streams: int, tokens: int, seed: int
    ) -> tuple[float, float, float]:
        """Microseconds a token in llama_decode, in the sampler, and in our Python."""
        prompt = tuple(model.vocab.tokenize(PROMPT, add_special=True, parse_special=True))
        before = (self._decode.seconds, self._sample.seconds, self._turns)
        request = Request(prompt, SamplingParams(seed=seed), max_tokens=tokens, n=streams, ignore_eos=True)
        done = gather(engine.submit(request)).usage.completion_tokens
        engine.clear({"nobody"})  # returns between two turns
        in_decode, in_sampler = self._decode.seconds - before[0], self._sample.seconds - before[1]
        ours = self._turns - before[2] - in_decode - in_sampler
        return 1e6 * in_decode / done, 1e6 * in_sampler / done, 1e6 * ours / done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    with (
        Overhead() as overhead,
        Model.load(demo_model_path()) as model,
        Engine(model, EngineConfig(ctx_size=4096)) as engine,
    ):
        print(
            f"{'streams':>7}  {'llama_decode':>12}  {'C sampler':>9}  {'ours':>6}"
            f"   µs a token, median of {args.passes}"
        )
        for streams in args.streams:
            rows = [overhead.of_reply(engine, model, streams, args.tokens, i) for i in range(args.passes + 1)]
            median = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
            print(f"{streams:>7}  {median[0]:>12.0f}  {median[1]:>9.0f}  {median[2]:>6.0f}")


if __name__ == "__main__":
    main()
