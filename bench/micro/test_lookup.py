"""Looking up: what is known of a prompt, by tokens, by text, and as a plan. The promise for a plan: under 5 ms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench.micro.stored import LONG, SPELLED, Million
from pytest_benchmark.fixture import BenchmarkFixture

from onceread.engine.alignment import Aligner
from onceread.engine.planner import Planner


class EmptyPool:
    """A context that holds nothing, so that all of a plan is the store's."""

    cuttable = True
    residents: list[Any] = []  # noqa: RUF012
    running: list[Any] = []  # noqa: RUF012


@pytest.fixture
def planner(million: Million) -> Planner:
    aligner = Aligner(SPELLED, np.zeros(len(SPELLED), dtype=np.bool_))
    return Planner(EmptyPool(), aligner, million.store, LONG + 1)  # type: ignore[arg-type]


def test_match_32k_tokens(benchmark: BenchmarkFixture, million: Million) -> None:
    found = benchmark(million.store.match, "default", million.edited)
    assert found.length == LONG - 100


def test_match_a_chat_among_hundreds_over_one_system_prompt(
    benchmark: BenchmarkFixture, million: Million
) -> None:
    found = benchmark(million.store.match, "default", million.last)
    assert found.length == len(million.last)


def test_match_32k_tokens_by_their_text(benchmark: BenchmarkFixture, million: Million) -> None:
    text = million.store.spell(million.edited)
    found = benchmark(million.store.match_text, "default", text)
    assert len(found) >= LONG - 101


def test_spell_32k_tokens(benchmark: BenchmarkFixture, million: Million) -> None:
    benchmark(million.store.spell, million.edited)


@pytest.mark.parametrize("alignable", [False, True], ids=["by tokens", "with alignment"])
def test_plan_32k_tokens(
    benchmark: BenchmarkFixture, million: Million, planner: Planner, alignable: bool
) -> None:
    plan = benchmark(planner.plan, million.edited, "default", {}, alignable=alignable)
    assert plan.stored >= LONG - 101


def test_list_50_paths(benchmark: BenchmarkFixture, million: Million) -> None:
    assert len(benchmark(million.store.paths, None, 50).paths) == 50


@pytest.mark.parametrize("every", [1, 8], ids=["all split differently", "one in eight"])
def test_align_8k_tokens_that_were_split_otherwise(benchmark: BenchmarkFixture, every: int) -> None:
    """A reply that was sampled letter by letter, here and there, and comes back in the tokenizer's split."""
    pieces = [bytes([i]) for i in range(256)] + [b"word", b" and", b" more"]
    aligner = Aligner(pieces, np.zeros(len(pieces), dtype=np.bool_))
    prompt = np.array([256, 257, 258] * 2700, dtype=np.int32)[:8000]
    path: list[int] = []
    for i, token in enumerate(prompt):
        path += list(pieces[token]) if i % every == 0 else [int(token)]
    join = benchmark(aligner.join, np.array(path, dtype=np.int32), prompt)
    assert join.covered == len(prompt)
