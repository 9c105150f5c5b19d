"""Moved stretches: each is really there, none that is long enough is overlooked, and the best source is taken."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceread.engine.moved import LEAST, Stretch, _Rolling, find_moved
from onceread.engine.sequence import as_tokens

_random = random.Random(20240229)


def text(n: int) -> list[int]:
    """Tokens that are nowhere else."""
    return [_random.randrange(49_000) for _ in range(n)]


def found(prompt: Sequence[int], begin: int, *sources: Sequence[int], least: int = LEAST) -> list[Stretch]:
    return find_moved(as_tokens(prompt), begin, [as_tokens(s) for s in sources], least)


# -- against a naive twin --------------------------------------------------------


def known(run: Sequence[int], sources: Sequence[Sequence[int]]) -> bool:
    n = len(run)
    return any(list(s[i : i + n]) == list(run) for s in sources for i in range(len(s) - n + 1))


def most(prompt: Sequence[int], begin: int, sources: Sequence[Sequence[int]], least: int) -> int:
    """How many tokens can be covered at best."""
    end = len(prompt) - 1
    best = [0] * (end + 1)
    for start in range(end - 1, begin - 1, -1):
        best[start] = best[start + 1]
        for stop in range(start + least, end + 1):
            if not known(prompt[start:stop], sources):
                break
            best[start] = max(best[start], stop - start + best[stop])
    return best[begin] if begin <= end else 0


def check(
    stretches: list[Stretch], prompt: Sequence[int], begin: int, sources: Sequence[Sequence[int]], least: int
) -> None:
    """All that is promised, the slow way."""
    end = len(prompt) - 1
    at = begin
    covered = [False] * (end + least)
    for i, one in enumerate(stretches):
        assert one.n >= least
        assert at <= one.start
        assert one.end <= end
        source = sources[one.source]
        assert one.source_start >= 0
        assert list(source[one.source_start : one.source_start + one.n]) == list(prompt[one.start : one.end])
        covered[one.start : one.end] = [True] * one.n
        follower = stretches[i + 1].start if i + 1 < len(stretches) else end
        after = one.source_start + one.n
        if one.end < follower and after < len(source):
            assert source[after] != prompt[one.end], "it could have gone on"
        if one.start > at and one.source_start > 0:
            assert source[one.source_start - 1] != prompt[one.start - 1], "it could have begun earlier"
        at = one.end
    for start in range(begin, end - least + 1):
        if not any(covered[start : start + least]):
            assert not known(prompt[start : start + least], sources), f"overlooked at {start}"


few = st.lists(st.integers(0, 2), max_size=40)


@settings(max_examples=400, deadline=None)
@given(few, st.lists(few, max_size=3), st.integers(0, 10), st.integers(1, 7))
def test_it_is_what_it_promises(prompt: list[int], sources: list[list[int]], begin: int, least: int) -> None:
    stretches = found([*prompt, 0], begin, *sources, least=least)
    check(stretches, [*prompt, 0], begin, sources, least)
    assert 2 * sum(s.n for s in stretches) >= most([*prompt, 0], begin, sources, least)


pieces = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(0, 3)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(pieces, st.integers(0, 3), st.integers(4, 16), st.randoms(use_true_random=False))
def test_in_a_text_put_together_from_others_all_pieces_are_found(
    pieces: list[tuple[int, int, int]], begin: int, least: int, random: random.Random
) -> None:
    sources = [[random.randrange(1000) for _ in range(250)] for _ in range(3)]
    prompt, expected = list(range(2000, 2000 + begin)), 0
    for i, (start, n, which) in enumerate(pieces):
        prompt.append(3000 + i)  # parts the pieces
        piece = sources[which][start : start + n] if which < 3 else [4000 + j for j in range(n)]
        prompt += piece
        expected += len(piece) if which < 3 and len(piece) >= least else 0
    prompt.append(5000)
    stretches = found(prompt, begin, *sources, least=least)
    check(stretches, prompt, begin, sources, least)
    assert sum(s.n for s in stretches) == expected


# -- what clients do ---------------------------------------------------------------

HEAD, A, B, C, NEW = text(30), text(200), text(150), text(300), text(20)
KNOWN = HEAD + A + B + C


@pytest.mark.parametrize(
    ("prompt", "begin", "expected"),
    [
        pytest.param(HEAD + C + NEW, 30, [(30, 380, 300)], id="the oldest turns are gone"),
        pytest.param(HEAD + NEW + A + B + C, 30, [(50, 30, 649)], id="a note was put in"),
        pytest.param(
            [*HEAD[:9], 49_001, 49_002, *HEAD[10:], *A, *B, *C],
            9,
            [(11, 10, 669)],
            id="a timestamp has changed",
        ),
        pytest.param(
            [*HEAD, 49_001, *A[1:], *B, *C], 30, [(31, 31, 648)], id="one token is another, as long"
        ),
        pytest.param(HEAD + A + NEW + C, 230, [(250, 380, 299)], id="the middle is another"),
        pytest.param(
            HEAD + C + B + A + NEW,
            30,
            [(30, 380, 300), (330, 230, 150), (480, 30, 200)],
            id="the order has changed",
        ),
        pytest.param(
            HEAD + A + A + NEW, 230, [(230, 30, 200)], id="a passage is repeated, the first time in place"
        ),
        pytest.param(NEW + B, 0, [(20, 230, 149)], id="all of it is elsewhere, and the last token is left"),
        pytest.param(HEAD + C[:64], 30, [], id="with the last token left it is too short"),
        pytest.param(HEAD + C[:65], 30, [(30, 380, 64)], id="just long enough"),
        pytest.param(HEAD + NEW, 30, [], id="nothing is known"),
        pytest.param(KNOWN, 680, [], id="nothing is left to find"),
    ],
)
def test_behind_every_kind_of_edit_the_rest_is_found(
    prompt: list[int], begin: int, expected: list[tuple[int, int, int]]
) -> None:
    stretches = found(prompt, begin, KNOWN)
    check(stretches, prompt, begin, [KNOWN], LEAST)
    assert [(s.start, s.source_start, s.n) for s in stretches] == expected


def test_the_source_that_goes_on_longest_is_taken() -> None:
    prompt = HEAD + A + B + NEW
    sources = [HEAD + NEW + A, NEW + A + B, A + B[:100]]
    assert found(prompt, 30, *sources) == [Stretch(30, 1, 20, 350)]


def test_then_the_nearest_place_and_then_the_first_source() -> None:
    prompt = HEAD + A + NEW
    far, near = text(400) + A, text(40) + A
    assert found(prompt, 30, far, near, near) == [Stretch(30, 1, 40, 200)]
    assert found(prompt, 30, A, text(45) + A) == [Stretch(30, 1, 45, 200)], "its own place is 30"
    both = text(300) + A + text(10) + A
    assert found(prompt, 30, both) == [Stretch(30, 0, 300, 200)]


def test_two_that_overlap_share_what_they_both_have() -> None:
    prompt = HEAD + A + B + NEW
    first, second = A + B[:30], A[170:] + B  # 30 tokens on either side of where A ends
    stretches = found(prompt, 30, first, second)
    assert sum(s.n for s in stretches) == 350
    assert [s.source for s in stretches] == [0, 1]


def test_what_would_be_too_short_behind_another_makes_the_other_shorter() -> None:
    prompt = HEAD + A + B[:40] + NEW
    first, second = [*A, 49_001], A[160:] + B[:40]  # 80 tokens, of which 40 are behind A
    stretches = found(prompt, 30, first, second)
    assert [(s.start, s.end) for s in stretches] == [(30, 206), (206, 270)]


def test_a_short_one_gives_way_to_a_long_one_that_begins_inside_it() -> None:
    prompt = HEAD + A[:70] + B[:50] + NEW
    first, second = [*A[:70], 49_001], A[10:70] + B[:50]  # 70 and 110 tokens, 60 of them the same
    assert found(prompt, 30, first, second) == [Stretch(40, 1, 0, 110)]


def test_texts_that_repeat_without_end_are_found_too() -> None:
    same = [7] * 5000
    assert sum(s.n for s in found([7] * 3000, 10, same, same)) == 2989
    parted = [7] * 3000
    parted[::100] = [8] * 30
    stretches = found(parted, 0, same)
    check(stretches, parted, 0, [same], LEAST)
    assert sum(s.n for s in stretches) == 30 * 99 - 1


def test_what_only_has_the_same_hash_is_not_taken() -> None:
    # Sums of powers modulo 2⁶⁴ are the same for a long Thue-Morse sequence and its opposite.
    n = 2049
    ones = [9] + [i.bit_count() % 2 for i in range(n - 1)]
    opposite = [9] + [1 - one for one in ones[1:]]
    hashes = [_Rolling(as_tokens(t)).windows(n)[0] for t in (ones, opposite)]
    assert hashes[0] == hashes[1], "the test shows nothing"
    assert found([*ones, 5], 0, opposite, least=n) == []
    assert found([*ones, *A, 5], 0, opposite, [*ones[1:], *A], least=n) == [Stretch(1, 1, 0, n - 1 + 200)]


def test_there_may_be_nothing_to_look_in() -> None:
    prompt = as_tokens(KNOWN)
    assert find_moved(prompt, 0, []) == []
    assert find_moved(prompt, 0, [as_tokens([]), as_tokens(A[:63])]) == []
    assert find_moved(prompt[:1], 0, [prompt]) == []
    assert np.array_equal(prompt, KNOWN), "the prompt was changed"
