"""Stretches of a prompt that are known at another place: behind a deletion, an insertion, a replacement.

    source   |-- head --|- dropped -|========== a ==========|== b ==|
    prompt   |-- head --|========== a ==========|- note -|== b ==|- new -|

A stretch must be ``least`` tokens long. Whether one begins at a position is seen by hashes of the ``least`` tokens
from there on, for all positions of the prompt and of all sources at once; which source goes on longest, by
comparing the tokens themselves. So no hash is ever trusted, and the cost hardly depends on what was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from onceread.engine.sequence import Tokens, common_prefix

LEAST = 64  # tokens of a stretch
_CANDIDATES = 1024  # places of one window that are looked at; more are only in texts that repeat without end
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_SPREAD = np.uint64(0xD1B54A32D192ED03)
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]


class Stretch(NamedTuple):
    """``prompt[start : start + n]`` is ``sources[source][source_start : source_start + n]``."""

    start: int
    source: int
    source_start: int
    n: int

    @property
    def end(self) -> int:
        return self.start + self.n


def find_moved(prompt: Tokens, begin: int, sources: Sequence[Tokens], least: int = LEAST) -> list[Stretch]:
    """The stretches of ``prompt[begin:-1]`` that sources have, ascending, none over another.

    They cover as much as can be had in pieces of ``least`` tokens and more, but for less than that where two
    overlap: no run of ``least`` tokens that a source has is left out as a whole. Each goes on as far as its
    source does, or to where the next begins. Of several sources the one that goes on longest is taken, then
    the place nearest to the stretch's own, then the first.
    """
    assert least > 0
    end = len(prompt) - 1  # logits need a decode: the last token is always evaluated
    usable = [i for i, tokens in enumerate(sources) if len(tokens) >= least]
    if end - begin < least or not usable:
        return []
    search = _Search(prompt[begin:end], begin, [sources[i] for i in usable], least)
    return [Stretch(begin + a.start, usable[a.source], a.source_start, a.n) for a in _chosen(search, least)]


def _chosen(search: _Search, least: int) -> list[Stretch]:
    chosen: list[Stretch] = []
    at = 0
    while (start := search.next(at)) is not None:
        best = search.longest(start)
        if best is None:  # two hashes were the same by chance
            at = start + 1
            continue
        best = _beside_the_next(search, at, best, least)
        chosen.append(best)
        at = best.end
    return chosen


def _beside_the_next(search: _Search, at: int, first: Stretch, least: int) -> Stretch:
    """``first``, or what stands in its place so that what begins inside it and goes on behind it is not lost.

    first    |==========|                    |==========|                  |======|
    second          |======|            or           |======|        or       |===========|
    chosen   |======|======|                 |==========|                     |===========|
    """
    start = search.last(first.end)
    if start is None or start == first.end or start <= first.end - least:
        return first  # what follows begins at its end, or not so near
    second = search.longest(start)
    if second is None or second.end <= first.end:
        return first
    if start >= first.start + least:
        # Another piece is another load: not for a handful of tokens.
        gained = second.end - first.end
        return first._replace(n=start - first.start) if gained >= least // 4 else first
    second = search.back_to(at, second)
    return second if second.n > first.n else first


class _Search:
    """One prompt and its sources, hashed. Positions of the prompt count from where the search begins."""

    def __init__(self, prompt: Tokens, begin: int, sources: Sequence[Tokens], least: int) -> None:
        self._prompt = prompt
        self._begin = begin
        self._least = least
        # All sources in a row, apart by a token that no prompt has.
        gap = np.full(1, -1, dtype=np.int32)
        self._known = np.concatenate([part for tokens in sources for part in (tokens, gap)])
        lengths = np.array([len(tokens) + 1 for tokens in sources], dtype=np.int64)
        self._firsts = np.cumsum(lengths) - lengths
        self._wanted = _Rolling(prompt)
        self._had = _Rolling(self._known)
        self._windows = self._had.windows(least)
        self._marks = self._wanted.windows(least)
        kept = np.sort(self._windows)
        found = np.minimum(np.searchsorted(kept, self._marks), len(kept) - 1)
        self._seen: dict[int, Places] = {}
        self._hits: Places = np.flatnonzero(kept[found] == self._marks)

    def next(self, at: int) -> int | None:
        """The first position from ``at`` on where a stretch begins."""
        i = int(np.searchsorted(self._hits, at))
        return int(self._hits[i]) if i < len(self._hits) else None

    def last(self, at: int) -> int | None:
        """The last position up to ``at`` where a stretch begins."""
        i = int(np.searchsorted(self._hits, at, side="right")) - 1
        return int(self._hits[i]) if i >= 0 else None

    def longest(self, start: int) -> Stretch | None:
        """The best stretch that begins at ``start``; None if only hashes say that there is one."""
        places = self._places(start)
        if len(places) > 1:
            places = self._best(start, places)
        for place in places.tolist():
            n = common_prefix(self._prompt[start:], self._known[place:])
            if n >= self._least:
                source = int(np.searchsorted(self._firsts, place, side="right")) - 1
                return Stretch(start, source, place - int(self._firsts[source]), n)
        return None

    def back_to(self, at: int, stretch: Stretch) -> Stretch:
        """The stretch, begun as early as its source allows and not before ``at``."""
        room = min(stretch.start - at, stretch.source_start)
        place = int(self._firsts[stretch.source]) + stretch.source_start
        before = self._prompt[stretch.start - room : stretch.start][::-1]
        n = common_prefix(before, self._known[place - room : place][::-1])
        return Stretch(stretch.start - n, stretch.source, stretch.source_start - n, stretch.n + n)

    def _best(self, start: int, places: Places) -> Places:
        """Of the places where the window at ``start`` lies, those that go on longest, nearest first."""
        if len(places) > _CANDIDATES:
            places = self._nearest(start, places)
        shifts = np.abs(self._positions(places) - (self._begin + start))
        places = places[np.argsort(shifts, kind="stable")]
        # Double what must be equal as long as any place has it, then halve.
        n, step = self._least, self._least
        most = len(self._prompt) - start
        while len(places) > 1 and n < most and step:
            longer = min(n + step, most)
            inside = places[places + longer <= len(self._known)]
            agree = inside[self._had.at(inside, longer) == self._wanted.one(start, longer)]
            if len(agree):
                places, n, step = agree, longer, 2 * step
            else:
                most, step = longer - 1, (longer - 1 - n) // 2 or min(1, longer - 1 - n)
        return places

    def _places(self, start: int) -> Places:
        """Where the window at ``start`` lies in the sources, if hashes can be trusted."""
        mark = int(self._marks[start])
        if mark not in self._seen:
            self._seen[mark] = np.flatnonzero(self._windows == self._marks[start])
        return self._seen[mark]

    def _nearest(self, start: int, places: Places) -> Places:
        """Of too many places, the same number from each source, around the window's own position."""
        share = max(1, _CANDIDATES // len(self._firsts))
        edges = np.append(np.searchsorted(places, self._firsts), len(places)).tolist()
        around = np.searchsorted(places, self._firsts + (self._begin + start)).tolist()
        parts = []
        for low, high, middle in zip(edges, edges[1:], around, strict=False):
            first = min(max(low, middle - share // 2), max(low, high - share))
            parts.append(places[first : min(high, first + share)])
        return np.concatenate(parts)

    def _positions(self, places: Places) -> Places:
        return places - self._firsts[np.searchsorted(self._firsts, places, side="right") - 1]


class _Rolling:
    """Hashes of any stretch of an array, from sums up to each position. Equal stretches have equal hashes."""

    def __init__(self, tokens: Tokens) -> None:
        n = len(tokens)
        spread = (tokens.astype(np.uint64) + np.uint64(1)) * _SPREAD
        spread ^= spread >> np.uint64(29)
        self._sums: Hashes = np.zeros(n + 1, dtype=np.uint64)
        np.cumsum(spread * _powers(_BASE, n), out=self._sums[1:])
        self._back = _powers(_INVERSE, n)

    def windows(self, n: int) -> Hashes:
        """Of all stretches of ``n`` tokens."""
        return (self._sums[n:] - self._sums[:-n]) * self._back[: len(self._sums) - n]

    def at(self, places: Places, n: int) -> Hashes:
        """Of the stretches of ``n`` tokens that begin at ``places``."""
        return (self._sums[places + n] - self._sums[places]) * self._back[places]

    def one(self, place: int, n: int) -> np.uint64:
        return np.uint64(self.at(np.array([place]), n)[0])


def _powers(base: np.uint64, n: int) -> Hashes:
    """1, base, base², …, modulo 2⁶⁴."""
    powers = np.full(n, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
