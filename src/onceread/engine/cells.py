"""The account of the context's cells: which are free, and how many sequences share each of the others."""

from __future__ import annotations

from typing import Any

import numpy as np

Cells = np.ndarray[Any, np.dtype[np.int32]]


class CellLedger:
    """A twin of llama.cpp's cell table, kept because llama.cpp does not tell how full it is.

    Its cell numbers are its own and do not matter; that every evaluated token takes one cell, that a shared
    prefix takes none, and that a cell is free when its last owner leaves, is the same on both sides. It also
    remembers what was put into each cell, so that :meth:`check` can hold a sequence against it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._owners = np.zeros(size, dtype=np.int32)
        self._stack = np.arange(size - 1, -1, -1, dtype=np.int32)
        self.free = size
        self._token = np.zeros(size, dtype=np.int32)
        self._pos = np.zeros(size, dtype=np.int32)

    @property
    def used(self) -> int:
        return self.size - self.free

    def take(self, tokens: np.ndarray[Any, Any], pos: int) -> Cells:
        """Cells for ``tokens``, evaluated at positions from ``pos`` on. There must be room."""
        n = len(tokens)
        assert n <= self.free, f"{n} cells wanted, {self.free} free"
        taken = self._stack[self.free - n : self.free][::-1].copy()
        self.free -= n
        self._owners[taken] = 1
        self._token[taken] = tokens
        self._pos[taken] = np.arange(pos, pos + n, dtype=np.int32)
        return taken

    def take_one(self, token: int, pos: int) -> int:
        """The same for a single token."""
        assert self.free > 0, "no free cell"
        self.free -= 1
        cell = int(self._stack[self.free])
        self._owners[cell] = 1
        self._token[cell] = token
        self._pos[cell] = pos
        return cell

    def share(self, cells: Cells) -> None:
        """One more owner for each of ``cells``."""
        self._owners[cells] += 1

    def release(self, cells: Cells) -> None:
        """One owner less; cells without an owner are free."""
        self._owners[cells] -= 1
        gone = cells[self._owners[cells] == 0]
        n = len(gone)
        self._stack[self.free : self.free + n] = gone
        self.free += n

    def freed_by(self, groups: list[Cells]) -> int:
        """How many cells would become free if every group in ``groups`` were released."""
        if not groups:
            return 0
        leaving = np.zeros(self.size, dtype=np.int32)
        for cells in groups:
            leaving[cells] += 1
        return int(np.count_nonzero((leaving > 0) & (leaving == self._owners)))

    def check(self, cells: Cells, tokens: np.ndarray[Any, Any]) -> None:
        """Assert that ``cells`` hold exactly ``tokens`` at positions 0, 1, 2, ..."""
        assert len(cells) == len(tokens)
        assert (self._owners[cells] > 0).all(), "a sequence holds a free cell"
        assert (self._token[cells] == tokens).all(), "a sequence's cells hold other tokens than it was given"
        assert (self._pos[cells] == np.arange(len(cells))).all(), "a sequence's cells hold other positions"
