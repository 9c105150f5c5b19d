"""Joining a known path with a prompt that spells the same text in other tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceread.engine.alignment import Aligner, Join
from onceread.engine.sequence import as_tokens

# A toy vocabulary in which the same text can be spelled in many ways; "" stands for control tokens.
PIECES = [b"", b"", b"a", b"b", b"ab", b"ba", b"aba", b"bb", "é".encode(), "é".encode()[:1], "é".encode()[1:]]
STOP, START, A, B, AB, BA, ABA, BB, E, E1, E2 = range(len(PIECES))
CONTROL = np.array([not p for p in PIECES])
ALIGNER = Aligner(PIECES, CONTROL)


def spell(tokens: list[int]) -> tuple[bytes | int, ...]:
    """What a run says: bytes one by one, and control tokens as themselves."""
    said: list[bytes | int] = []
    for token in tokens:
        said.extend([token] if CONTROL[token] else [bytes([b]) for b in PIECES[token]])
    return tuple(said)


@pytest.mark.parametrize(
    ("path", "prompt", "expected"),
    [
        pytest.param([A, B], [A, B], Join(2, 2), id="equal runs join whole"),
        pytest.param([A, B], [AB], Join(2, 1), id="the same text, split otherwise, joins at its end"),
        pytest.param([AB, A], [A, BA], Join(2, 2), id="boundaries that meet only at the end"),
        pytest.param([AB, A], [ABA, B], Join(2, 1), id="the prompt goes on"),
        pytest.param([AB, AB], [ABA, A], Join(0, 0), id="no shared boundary before the texts part"),
        pytest.param([A, A, B], [A, AB, STOP], Join(3, 2), id="a control token after the join"),
        pytest.param([A, STOP, B], [A, START, B], Join(1, 1), id="control tokens match only themselves"),
        pytest.param([E1, E2, A], [E, A], Join(3, 2), id="a character sampled in two halves"),
        pytest.param([A, E1], [A, E], Join(1, 1), id="never joined inside a character of the prompt"),
        pytest.param([], [A], Join(0, 0), id="an empty path"),
    ],
)
def test_join(path: list[int], prompt: list[int], expected: Join) -> None:
    assert ALIGNER.join(as_tokens(path), as_tokens(prompt)) == expected


runs = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


@given(path=runs, prompt=runs)
def test_the_joined_prompt_says_what_the_prompt_says(path: list[int], prompt: list[int]) -> None:
    join = ALIGNER.join(as_tokens(path), as_tokens(prompt))
    assert spell(path[: join.kept] + prompt[join.covered :]) == spell(prompt)


@given(path=runs, prompt=runs)
def test_the_join_is_the_last_common_boundary(path: list[int], prompt: list[int]) -> None:
    join = ALIGNER.join(as_tokens(path), as_tokens(prompt))
    boundaries = [
        Join(i, j)
        for i in range(len(path) + 1)
        for j in range(len(prompt) + 1)
        if spell(path[:i]) == spell(prompt[:j])
    ]
    assert join == max(boundaries, key=lambda b: b.covered)
