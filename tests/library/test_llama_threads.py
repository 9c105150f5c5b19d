"""One `Llama` and many threads: they are computed together, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onceread import Llama

pytestmark = pytest.mark.model

WORDS = [
    "sea",
    "harbour",
    "lamp",
    "keeper",
    "storm",
    "sail",
    "rope",
    "tide",
    "gull",
    "cliff",
    "island",
    "rock",
    "wave",
    "wind",
]


def test_eight_threads_are_computed_together(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=4096, parallel=8, cache_ram=0, verbose=False) as llm:
        engine = llm._serving.engine

        def work(i: int) -> Any:
            return llm(f"{WORDS[i]} " * 20, max_tokens=60, ignore_eos=True)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(work, range(8)))
        written = sum(answer["usage"]["completion_tokens"] for answer in answers)
        assert written == 8 * 60
        assert engine.stats().decode_calls_total < written / 2


@pytest.mark.soak
def test_mixed_calls_with_cancellations_all_end(
    tiny_path: Path, soak_scale: float, soak_seed: int, record_property: Callable[[str, object], None]
) -> None:
    calls = round(1000 * soak_scale) if soak_scale == 1 else 100
    record_property("calls", calls)
    with Llama(tiny_path, n_ctx=4096, parallel=4, cache_ram="64MiB", verbose=False) as llm:
        messages = [{"role": "user", "content": "Tell me of the sea."}]

        def whole(rng: random.Random) -> None:
            llm(" ".join(rng.choices(WORDS, k=rng.randint(1, 80))), max_tokens=rng.randint(1, 20))

        def left(rng: random.Random) -> None:
            stream = llm.create_chat_completion(messages, max_tokens=1000, stream=True, ignore_eos=True)
            for _ in range(rng.randint(0, 5)):
                next(stream)  # type: ignore[call-overload]

        def streamed(rng: random.Random) -> None:
            prompt = " ".join(rng.choices(WORDS, k=10))
            assert list(llm(prompt, max_tokens=10, stream=True))[-1]["choices"][0]["finish_reason"]

        def embedded(rng: random.Random) -> None:
            llm.embed(rng.choices(WORDS, k=3))

        def refused(rng: random.Random) -> None:
            with pytest.raises(ValueError, match="top_p"):
                llm("x", top_p=rng.uniform(2, 3))

        kinds: list[Callable[[random.Random], None]] = [whole, left, streamed, embedded, refused]

        def call(i: int) -> None:
            rng = random.Random(soak_seed + i)
            rng.choice(kinds)(rng)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(calls)))
        answer = llm("the end", max_tokens=1)
        assert answer["choices"][0]["finish_reason"]  # type: ignore[index]
