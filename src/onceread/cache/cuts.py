"""Where a chunk ends: after 256 tokens, or after a message that ends when it holds 64 or more, or at a checkpoint."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onceread.cache.contract import CHUNK

MIN_CHUNK = 64

Tokens = np.ndarray[Any, np.dtype[np.int32]]


class Cutter:
    """Cuts by the tokens alone, so that equal beginnings are cut alike wherever and by whom they are read."""

    def __init__(self, message_ends: Iterable[int]) -> None:
        """``message_ends``: tokens after which a message is over (end of turn, end of text)."""
        self._ends = np.fromiter(sorted(message_ends), dtype=np.int32)

    def end(self, tokens: Tokens, start: int, *, final: bool, cuts: Sequence[int] = ()) -> int | None:
        """Where the chunk from ``start`` on ends; None if ``tokens`` end before it does and may still grow.

        ``cuts``: positions, ascending, at which a chunk ends in any case.
        """
        end = self._end(tokens, start, final=final)
        cut = next(iter(cuts[bisect_right(cuts, start) :]), None)
        if cut is not None and cut <= len(tokens) and (end is None or cut < end):
            return cut
        return end

    def _end(self, tokens: Tokens, start: int, *, final: bool) -> int | None:
        limit = start + CHUNK
        first = start + MIN_CHUNK - 1  # the first token that may be a chunk's last
        ends = np.flatnonzero(np.isin(tokens[first:limit], self._ends))
        if len(ends):
            return first + int(ends[0]) + 1
        if len(tokens) >= limit:
            return limit
        return len(tokens) if final and len(tokens) > start else None
