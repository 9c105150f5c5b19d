"""A batch for llama_decode, filled through numpy views of llama.cpp's own arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from onceread.native.library import lib


class Batch:
    """Up to ``capacity`` tokens, each of one sequence. Reused from step to step.

    Filling costs a few array assignments a run of tokens, whatever its length.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._b = lib.llama_batch_init(capacity, 0, 1)
        if not self._b.token:
            raise MemoryError("no memory for a batch")
        as_array = np.ctypeslib.as_array
        self._token = as_array(self._b.token, (capacity,))
        self._pos = as_array(self._b.pos, (capacity,))
        self._n_seq_id = as_array(self._b.n_seq_id, (capacity,))
        self._logits = as_array(self._b.logits, (capacity,))
        # llama_batch_init gives each token a heap cell for its sequence id; pointing them into one array
        # instead makes them fillable in one stroke. The originals are put back before the batch is freed.
        self._seq_id = np.zeros(capacity, dtype=np.int32)
        pointers = ctypes.cast(self._b.seq_id, ctypes.POINTER(ctypes.c_void_p))
        self._pointers: Any = as_array(ctypes.cast(pointers, ctypes.POINTER(ctypes.c_size_t)), (capacity,))
        self._own_pointers = self._pointers.copy()
        self._pointers[:] = self._seq_id.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self._n_seq_id[:] = 1
        self.n = 0

    @property
    def raw(self) -> Any:
        """The C struct, with ``n_tokens`` set."""
        self._b.n_tokens = self.n
        return self._b

    @property
    def room(self) -> int:
        return self.capacity - self.n

    def clear(self) -> None:
        self.n = 0

    def add(
        self,
        tokens: Sequence[int] | np.ndarray[Any, Any],
        pos: int,
        seq: int,
        *,
        logits_last: bool,
        outputs: bool = False,
    ) -> int:
        """Append a run of tokens of sequence ``seq`` from position ``pos`` on.

        Returns the batch index of its last token, where its logits are if ``logits_last``. ``outputs`` asks for
        what comes of every token, for embeddings.
        """
        n = len(tokens)
        start, end = self.n, self.n + n
        assert 0 < n <= self.room, f"{n} tokens into a batch with room for {self.room}"
        self._token[start:end] = tokens
        self._pos[start:end] = np.arange(pos, pos + n, dtype=np.int32)
        self._seq_id[start:end] = seq
        self._logits[start:end] = outputs
        if logits_last:
            self._logits[end - 1] = 1
        self.n = end
        return end - 1

    def add_one(self, token: int, pos: int, seq: int) -> int:
        """Append one token and ask for its logits; the cheap path of decoding. Returns its batch index."""
        i = self.n
        assert i < self.capacity, "the batch is full"
        self._token[i] = token
        self._pos[i] = pos
        self._seq_id[i] = seq
        self._logits[i] = 1
        self.n = i + 1
        return i

    def close(self) -> None:
        if self._b is not None:
            self._pointers[:] = self._own_pointers
            lib.llama_batch_free(self._b)
            self._b = None
