"""The simulation of many conversations: the real store, and a trace that is as it says."""

from __future__ import annotations

import numpy as np

from onceread.bench.scaling import Traffic, played, trace

SMALL = Traffic(conversations=30, assistants=4, open_at_once=6, system=200, message=30, reply=40, state=1000)


def test_the_trace_is_seeded_and_branches_and_returns() -> None:
    a, b = list(trace(SMALL)), list(trace(SMALL))
    assert all(np.array_equal(x[1], y[1]) for x, y in zip(a, b, strict=True))
    assert a[-1][0] == SMALL.conversations
    assert len(a) > 3 * SMALL.conversations
    for _, prompt, whole in a:
        assert np.array_equal(whole[: len(prompt)], prompt)


def test_a_store_without_limit_knows_all_that_was_said() -> None:
    seen: set[bytes] = set()
    known = total = 0
    for _, prompt, whole in trace(SMALL):
        n = next((n for n in range(len(prompt), 0, -1) if prompt[:n].tobytes() in seen), 0)
        known += min(n, len(prompt) - 1)
        total += len(prompt)
        seen.update(whole[:n].tobytes() for n in range(1, len(whole) + 1))
    found = played(SMALL, 1 << 60)
    assert (found.prompt, found.known) == (total, known)
    assert found.tokens == len(seen)
    assert found.evictions == 0
    assert (
        found.tokens * SMALL.state
        <= found.stored
        <= 1.15 * found.tokens * SMALL.state + 2048 * found.tokens / 64
    )


def test_a_smaller_one_is_outgrown_keeps_its_budget_and_knows_less() -> None:
    whole = played(SMALL, 1 << 60)
    half = played(SMALL, whole.stored // 2)
    assert half.outgrown is not None
    assert 0 < half.outgrown < SMALL.conversations
    assert half.stored <= half.budget
    assert 0 < half.known < whole.known
