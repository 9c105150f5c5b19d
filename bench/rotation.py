"""Characters in rotation on a context for four: what is evaluated from the second visit on, and decode after it all.

    python bench/rotation.py [--characters 12] [--length 1000] [--chats 30]

Each chat belongs to a character (a description of ``length`` tokens) and is visited twice. Then one stream
decodes alone; its speed is compared with the same engine's before anything was served.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from demo_model import demo_model_path
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, TextEvent, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

GREEDY = SamplingParams(temperature=0)
REPLY = 8


def decode_rate(engine: Engine, prompt: tuple[int, ...], n: int = 200) -> float:
    """Tokens a second of one stream, from its first token to its last."""
    times = [
        time.perf_counter()
        for event in engine.submit(Request(prompt, GREEDY, n, ignore_eos=True))
        if isinstance(event, TextEvent)
    ]
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--characters", type=int, default=12)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--chats", type=int, default=30)
    given = parser.parse_args()
    rng = random.Random(3)

    def words(n: int) -> list[int]:
        return [rng.randrange(300, 40_000) for _ in range(n)]

    with Model.load(demo_model_path()) as model, tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(ctx_size=4 * (given.length + 200), cache_ram=2 << 30, cache_dir=Path(folder))
        with Engine(model, config) as engine:
            probe = tuple(words(100))
            empty = [decode_rate(engine, probe) for _ in range(3)]
            engine.clear(None)
            characters = [words(given.length) for _ in range(given.characters)]
            chats = [[*characters[i % given.characters], *words(30)] for i in range(given.chats)]
            extra = 0
            for visit in range(2):
                for chat in chats:
                    new = 30 if visit else len(chat)
                    if visit:
                        chat += words(30)
                    usage = gather(engine.submit(Request(tuple(chat), GREEDY, REPLY, ignore_eos=True))).usage
                    if visit:
                        extra += usage.evaluated_tokens - new
            served = [decode_rate(engine, probe) for _ in range(3)]
            stats = engine.stats()
        print(f"{given.characters} characters of {given.length} tokens, {given.chats} chats, second visit:")
        print(f"tokens evaluated beyond the new ones: {extra} (of {given.chats} chats)")
        print(
            f"cached from context {stats.cached_context_total:,}, RAM {stats.cached_memory_total:,}, "
            f"disk {stats.cached_disk_total:,}; evaluated {stats.prompt_evaluated_total:,}"
        )
        before, after = statistics.median(empty), statistics.median(served)
        print(
            f"decode: {before:.1f} tokens/s when empty, {after:.1f} after it all: ratio {after / before:.3f}"
        )


if __name__ == "__main__":
    main()
