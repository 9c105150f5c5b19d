"""A node of the tree: a run of tokens, or a checkpoint, and where the state computed for it lies."""

from __future__ import annotations

import time

import numpy as np

from onceread.cache.contract import TOKEN, Key, Record, Use
from onceread.cache.cuts import Tokens
from onceread.cache.value import value


class Chunk:
    """Changed only under the store's lock; its blob is immutable.

    It is in RAM while ``blob`` is set and on disk while ``file_bytes`` is not 0. A chunk that was just split
    may still lie in the file of the wider one that it was part of: then ``file`` is that one's record.

    A checkpoint has no tokens and starts at its position.
    """

    __slots__ = (
        "bare",
        "blob",
        "counted",
        "file",
        "file_bytes",
        "hits",
        "key",
        "last_used",
        "leases",
        "occasions",
        "parent",
        "pinned",
        "priority",
        "queued",
        "reach",
        "root",
        "spelled",
        "text",
        "tokens",
    )

    def __init__(
        self,
        root: bytes,
        parent: bytes,
        key: Key,
        tokens: bytes,
        *,
        text: bool,
        reach: int = 0,
        bare: bool = False,
    ) -> None:
        self.root = root
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.reach = reach  # see Record
        self.bare = bare  # worth nothing by itself: its model can go on at checkpoints only
        self.text = text  # its tokens came from text, so text may be matched against it
        self.spelled: bytes | None = None  # its text, once it was looked at
        self.blob: bytes | None = None
        self.file_bytes = 0
        self.file: Record | None = None
        self.queued = 0.0  # since when it waits to be written, by the monotonic clock; 0 = it doesn't
        self.hits = 1
        self.last_used = time.time()
        self.occasions = 1  # on which it was used, see value.py
        self.counted = 0.0  # when the last of them was counted, in bytes that the memory tier had taken in
        self.leases = 0  # loads under way: it stays where it is meanwhile
        self.pinned = False
        self.priority = 0.0  # in the memory tier

    @property
    def start(self) -> int:
        return self.key.start

    @property
    def n(self) -> int:
        return len(self.tokens) // TOKEN

    @property
    def end(self) -> int:
        return self.key.start + self.n

    @property
    def is_checkpoint(self) -> bool:
        return not self.tokens

    @property
    def array(self) -> Tokens:
        """The tokens, as a view."""
        return np.frombuffer(self.tokens, dtype=np.int32)

    @property
    def size(self) -> int:
        """Bytes of its state, as far as is known."""
        return len(self.blob) if self.blob is not None else self.file_bytes

    @property
    def value(self) -> float:
        if self.bare:
            return 0.0
        if self.is_checkpoint:
            return value(self.occasions, self.start - self.reach, self.reach, self.size)
        return value(self.occasions, self.start, self.n, self.size)

    @property
    def use(self) -> Use:
        return Use(self.hits, self.last_used, self.value)

    @property
    def gone(self) -> bool:
        """Is its state nowhere any more?"""
        return self.blob is None and not self.file_bytes
