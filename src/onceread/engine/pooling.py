"""From vectors of tokens to one vector of a text."""

from __future__ import annotations

import numpy as np

from onceread.native.embedding import Pooling, Vector, Vectors


class Pooler:
    """Takes the vectors of one input's tokens, part by part in their order."""

    def __init__(self, pooling: Pooling, dimensions: int) -> None:
        self._pooling = pooling
        self._kept = np.zeros(dimensions, np.float64)
        self._all: list[Vectors] = []
        self.n = 0  # tokens so far

    def add(self, vectors: Vectors) -> None:
        if self._pooling == "mean":
            self._kept += vectors.sum(axis=0, dtype=np.float64)
        elif self._pooling == "last":
            self._kept[:] = vectors[-1]
        elif self._pooling == "none":
            self._all.append(vectors)
        elif self.n == 0:
            self._kept[:] = vectors[0]
        self.n += len(vectors)

    def vector(self) -> Vector:
        """What came of all of them, without pooling a row for each token. Not normalized."""
        if self._pooling == "none":
            return np.concatenate(self._all)
        of = max(1, self.n) if self._pooling == "mean" else 1
        return (self._kept / of).astype(np.float32)


def normalized(vector: Vector) -> Vector:
    """The vector at length 1; zeros stay zeros."""
    wide = vector.astype(np.float64)
    length = float(np.sqrt((wide * wide).sum()))
    return (wide / length).astype(np.float32) if length else vector
