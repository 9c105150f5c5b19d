"""A slice of prefill is divided fairly, and no token of it is wasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceread.engine.slicing import divide


@pytest.mark.parametrize(
    ("unread", "room", "expected"),
    [
        pytest.param([], 512, [], id="nobody reads"),
        pytest.param([100], 512, [100], id="one prompt takes what it needs"),
        pytest.param([4000], 512, [512], id="a long prompt takes it all"),
        pytest.param([4000, 30], 512, [482, 30], id="a short message goes along with a long document"),
        pytest.param([4000, 3000], 512, [512, 0], id="two long ones are read in turn"),
        pytest.param([4000, 3000, 40, 50], 512, [422, 0, 40, 50], id="short ones pass a long one that waits"),
        pytest.param([4000, 300, 300], 512, [512, 0, 0], id="those that could not be done in it wait"),
        pytest.param([10, 300], 512, [10, 300], id="an oldest that is nearly done leaves the rest"),
        pytest.param([5, 5], 1, [1, 0], id="room for one token"),
    ],
)
def test_divide(unread: list[int], room: int, expected: list[int]) -> None:
    assert divide(unread, room) == expected


@given(unread=st.lists(st.integers(1, 2000), min_size=1, max_size=6), room=st.integers(0, 600))
def test_no_room_is_wasted_and_the_oldest_is_never_starved(unread: list[int], room: int) -> None:
    shares = divide(unread, room)
    assert sum(shares) == min(room, sum(unread))
    assert all(0 <= share <= wanted for share, wanted in zip(shares, unread, strict=True))
    assert shares[0] >= min(unread[0], room / 2)
