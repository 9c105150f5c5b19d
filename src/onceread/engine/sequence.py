"""A sequence in the context: its tokens, the cells they lie in, and whose they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from onceread.engine.cells import CellLedger, Cells

Tokens = np.ndarray[Any, np.dtype[np.int32]]


EXACT = 2**31 - 1  # a position behind every token


def as_tokens(ids: Any) -> Tokens:
    return np.asarray(ids, dtype=np.int32)


class Sequence:
    """Tokens evaluated under one sequence id, in order from position 0. Growing is cheap."""

    def __init__(self, seq_id: int, namespace: str, *, alignable: bool) -> None:
        self.id = seq_id
        self.namespace = namespace
        self.alignable = alignable  # its tokens came from text, so text may be matched against it
        self.last_used = 0  # the engine's count of requests when it was last used
        self.hits = 0
        self.saved = False  # the store has all of it
        self.refused = False  # the store had no room for it
        self.looked = 0  # tokens up to which it was seen what the store lacks
        self.settled = True  # it can be decoded: of a memory that needs a checkpoint, that is there too
        # From here on tokens were read behind other text than stands before them: see moving.py.
        self.exact_until = EXACT
        self.marks: list[int] = []  # where checkpoints are to be taken of it, or were: chunks end there
        self._tokens = np.zeros(64, dtype=np.int32)
        self._cells = np.zeros(64, dtype=np.int32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> Tokens:
        """A view, valid until the sequence grows."""
        return self._tokens[: self._n]

    @property
    def cells(self) -> Cells:
        """A view, valid until the sequence grows."""
        return self._cells[: self._n]

    @property
    def exact(self) -> Tokens:
        """Of the tokens those whose state is as if it had been read here; all, where nothing was moved."""
        return self._tokens[: min(self._n, self.exact_until)]

    def append(self, tokens: Tokens, cells: Cells) -> None:
        end = self._n + len(tokens)
        self._reserve(end)
        self._tokens[self._n : end] = tokens
        self._cells[self._n : end] = cells
        self._n = end

    def append_one(self, token: int, cell: int) -> None:
        self._reserve(self._n + 1)
        self._tokens[self._n] = token
        self._cells[self._n] = cell
        self._n += 1

    def starts_with(self, tokens: Tokens) -> bool:
        n = len(tokens)
        return n <= self._n and bool(np.array_equal(self._tokens[:n], tokens))

    def release(self, ledger: CellLedger) -> None:
        self.truncate(0, ledger)

    def truncate(self, n: int, ledger: CellLedger) -> None:
        """Keep the first ``n`` tokens."""
        ledger.release(self._cells[n : self._n])
        self._n = n

    def _reserve(self, n: int) -> None:
        if n > len(self._tokens):
            size = max(n, 2 * len(self._tokens))
            self._tokens = np.resize(self._tokens, size)
            self._cells = np.resize(self._cells, size)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix, in tokens.

    Costs time in proportion to the result and not to the inputs: windows double as long as they agree.
    """
    n = min(len(a), len(b))
    start, window = 0, 64
    while start < n:
        end = min(n, start + window)
        different = np.flatnonzero(a[start:end] != b[start:end])
        if len(different):
            return start + int(different[0])
        start, window = end, 2 * window
    return n
