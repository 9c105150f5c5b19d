"""Where checkpoints are taken, for memories that can be gone on from nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from onceread.engine.marks import MOST, Marker

END = 7
TEXT = np.ones(1000, dtype=np.int32)


def messages(*ends: int, length: int = 1000) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    prompt = TEXT[:length].copy()
    prompt[[end - 1 for end in ends]] = END
    return prompt


@pytest.fixture
def marker() -> Marker:
    return Marker(frozenset({END}))


def test_where_the_client_asked_for_one(marker: Marker) -> None:
    prompt = messages(100, 200, 300, 400, 500, 600, 700, 800, 900)
    without = marker.marks(prompt, 0)
    assert not {333, 555} & set(without)
    marks = marker.marks(prompt, 0, 0, (333, 555))
    assert {333, 555, 999} <= set(marks)
    assert len(marks) <= MOST


def test_of_many_the_last_four(marker: Marker) -> None:
    asked = tuple(range(150, 1000, 100))
    assert set(marker.marks(TEXT, 0, 0, asked)) & set(asked) == {650, 750, 850, 950}


def test_none_where_it_is_of_no_use(marker: Marker) -> None:
    assert marker.marks(TEXT[:40], 20, 0, (0, 10, 20, 25, 39, 40, 50)) == [39]
