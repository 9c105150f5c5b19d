"""What may be shown of a reply, and when."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from onceread.engine.textstream import TextStream

alphabet = st.text(alphabet="ab<|é🗼", max_size=30)


def feed(text: str, cuts: list[int], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    data = text.encode()
    edges = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    stream = TextStream(stops)
    shown = []
    for start, end in itertools.pairwise(edges):
        out = stream.push(data[start:end])
        shown.append(out.text)
        if out.stop is not None:
            return shown, out.stop
    shown.append(stream.finish())
    return shown, None


@given(text=alphabet, cuts=st.lists(st.integers(0, 80)))
def test_text_comes_out_whole_however_its_bytes_are_cut(text: str, cuts: list[int]) -> None:
    shown, stop = feed(text, cuts, ())
    assert "".join(shown) == text
    assert stop is None
    assert all("\ufffd" not in s for s in shown)


@given(
    text=alphabet,
    cuts=st.lists(st.integers(0, 80)),
    stops=st.lists(st.text("ab<|", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_never_leaks_and_nothing_before_it_is_lost(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    shown, stop = feed(text, cuts, tuple(stops))
    said = "".join(shown)
    assert not any(s in said for s in stops)
    if stop is None:
        assert said == text
    else:
        assert text.startswith(said + stop)


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    stream = TextStream()
    assert stream.push("a🗼".encode()[:3]).text == "a"
    assert stream.finish() == ""


def test_what_could_begin_a_stop_is_held_and_released_when_it_does_not() -> None:
    stream = TextStream(("STOP",))
    assert stream.push(b"ab ST").text == "ab "
    assert stream.push(b"AR").text == "STAR"
