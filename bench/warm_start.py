"""Time to the first token of a known prompt: from the context, from RAM, and from disk after a restart.

    python bench/warm_start.py [--tokens 2000] [--new 16] [--passes 5]

One process, one engine at a time. Cold is an empty store and an empty context. The promise: from the context
or RAM at most 1/20 of cold, from disk after a restart at most 1/15.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from demo_model import demo_model_path
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, TextEvent
from onceread.native.model import Model
from onceread.native.params import SamplingParams

GREEDY = SamplingParams(temperature=0)
TEXT = "Sailors followed fires on hills, and every village kept its own watch over the sea. "


def first_token(engine: Engine, prompt: list[int]) -> tuple[float, dict[str, int]]:
    """Seconds to the first token, and where the prompt came from."""
    began = time.perf_counter()
    handle = engine.submit(Request(tuple(prompt), GREEDY, 2, ignore_eos=True))
    first = 0.0
    for event in handle:
        if isinstance(event, TextEvent) and not first:
            first = time.perf_counter() - began
    engine.clear({"nobody"})  # returns when the engine has done what follows a reply
    stats = engine.stats()
    return first, {
        "context": stats.cached_context_total,
        "memory": stats.cached_memory_total,
        "disk": stats.cached_disk_total,
        "evaluated": stats.prompt_evaluated_total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--passes", type=int, default=5)
    given = parser.parse_args()
    times: dict[str, list[float]] = {"cold": [], "context": [], "memory": [], "disk": []}
    with Model.load(demo_model_path()) as model:
        words = model.vocab.tokenize(TEXT * 400, add_special=True, parse_special=True)
        history, turn = words[: given.tokens], words[50 : 50 + given.new]
        for _ in range(given.passes):
            with tempfile.TemporaryDirectory() as folder:
                config = EngineConfig(
                    ctx_size=8192, cache_ram=1 << 30, cache_dir=Path(folder), resident_cells=0
                )
                with Engine(model, config) as engine:
                    times["cold"].append(first_token(engine, [*history, *turn])[0])
                    # Another last turn each time, so that as many tokens are new.
                    times["context"].append(first_token(engine, [*history, *turn[::-1]])[0])
                    first_token(engine, [7, 8, 9])  # what finishes last stays in the context: let it be this
                    times["memory"].append(first_token(engine, [*history, 9, *turn[1:]])[0])
                with Engine(model, config) as engine:
                    seconds, sources = first_token(engine, [*history, 11, *turn[1:]])
                    times["disk"].append(seconds)
                    assert sources["disk"] >= given.tokens, sources
    cold = statistics.median(times["cold"])
    print(f"{given.tokens:,} tokens of history, {given.new} new, {given.passes} passes; medians")
    print("| from | time to first token | of cold | single passes |")
    print("| --- | ---: | ---: | --- |")
    for name, all_of_it in times.items():
        median = statistics.median(all_of_it)
        passes = ", ".join(f"{1000 * t:.0f}" for t in all_of_it)
        print(f"| {name} | {1000 * median:.0f} ms | 1/{cold / median:.1f} | {passes} ms |")


if __name__ == "__main__":
    main()
