"""The memory tier: blobs in RAM, within a budget of bytes, the least valuable leaves given up first."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

from onceread.cache.chunk import Chunk
from onceread.cache.contract import TierStats
from onceread.cache.tree import ChunkTree
from onceread.cache.value import APART, age

NODE_BYTES = 2048  # what a chunk takes in Python beside its blob: its tokens, its place in the tree


class Room(NamedTuple):
    """What making room came to. The victims lost their blobs either way."""

    made: bool
    victims: list[Chunk]


class MemoryTier:
    """Not thread-safe: the store's lock stands before it."""

    def __init__(self, budget: int, tree: ChunkTree) -> None:
        self.budget = budget
        self.used = 0
        self.chunks = 0
        self.tokens = 0
        self.hit_tokens = 0
        self.evictions = 0
        self._tree = tree
        self.taken_in = 0.0  # bytes since the start: the time by which occasions are told apart
        self.apart = APART * budget
        self._clock = 0.0  # the same in terms of worth, see value.py
        self._order = itertools.count()
        # Leaves as (priority, deeper first, tie-break, chunk). What is no leaf any more, or has another
        # priority by now, is passed over when it comes up.
        self._heap: list[tuple[float, int, int, Chunk]] = []

    def put(self, chunk: Chunk, blob: bytes, *, keep_unwritten: bool) -> Room:
        """Hold ``blob`` for ``chunk``, making room first.

        With ``keep_unwritten`` chunks that wait to be written to disk stay.
        """
        assert chunk.blob is None
        size = len(blob) + NODE_BYTES
        self.taken_in += size
        self._clock += age(chunk.n, self.budget)
        room = self._make_room(size, keep_unwritten, chunk)
        if room.made:
            chunk.blob = blob
            self.used += size
            self.chunks += 1
            self.tokens += chunk.n
            self.touch(chunk)
        return room

    def widen(self, chunk: Chunk, size: int, *, keep_unwritten: bool) -> Room:
        """Make room for two chunks with together ``size`` bytes in place of one that is here."""
        assert chunk.blob is not None
        chunk.leases += 1  # it is not to be evicted itself
        room = self._make_room(size - len(chunk.blob) + NODE_BYTES, keep_unwritten, chunk)
        chunk.leases -= 1
        return room

    def drop(self, chunk: Chunk) -> None:
        """Give up a chunk's blob."""
        assert chunk.blob is not None
        self.used -= len(chunk.blob) + NODE_BYTES
        self.chunks -= 1
        self.tokens -= chunk.n
        chunk.blob = None
        for parent in self._tree.ending(chunk.parent):
            if parent.blob is not None:
                self._push(parent)  # it may be a leaf now

    def use(self, chunk: Chunk) -> None:
        """A request uses a chunk, wherever its state lies."""
        if self.taken_in - chunk.counted >= self.apart:
            chunk.occasions += 1
            chunk.counted = self.taken_in
        if chunk.blob is not None:
            self.touch(chunk)

    def touch(self, chunk: Chunk) -> None:
        """A chunk came or was used: its age begins anew."""
        chunk.priority = self._clock + chunk.value
        self._push(chunk)

    def _push(self, chunk: Chunk) -> None:
        heapq.heappush(self._heap, (chunk.priority, -chunk.start, next(self._order), chunk))
        if len(self._heap) > 4 * self.chunks + 64:
            live = {id(e[3]): e for e in self._heap if e[3].blob is not None and e[0] == e[3].priority}
            self._heap = list(live.values())
            heapq.heapify(self._heap)

    def _make_room(self, size: int, keep_unwritten: bool, newcomer: Chunk) -> Room:
        victims: list[Chunk] = []
        if size > self.budget:
            return Room(False, victims)
        passed = []
        while self.used + size > self.budget and self._heap:
            entry = heapq.heappop(self._heap)
            priority, _, _, victim = entry
            if victim.blob is None or victim.priority != priority or not self._is_leaf(victim):
                continue
            if self._must_stay(victim, keep_unwritten) or newcomer.parent == victim.key.name:
                passed.append(entry)
                continue
            self.drop(victim)
            self.evictions += 1
            victims.append(victim)
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return Room(self.used + size <= self.budget, victims)

    def _is_leaf(self, chunk: Chunk) -> bool:
        if any(other is not chunk and other.blob is not None for other in self._tree.ending(chunk.key.name)):
            return True  # another one leads to the same children
        return not any(child.blob is not None for child in self._tree.children(chunk.key.name))

    @staticmethod
    def _must_stay(chunk: Chunk, keep_unwritten: bool) -> bool:
        waits = bool(chunk.queued) and keep_unwritten
        return chunk.leases > 0 or waits or (chunk.pinned and not chunk.file_bytes)

    def stats(self, pinned_bytes: int) -> TierStats:
        return TierStats(
            state="ok",
            budget=self.budget,
            bytes=self.used,
            pinned_bytes=pinned_bytes,
            chunks=self.chunks,
            tokens=self.tokens,
            hit_tokens_total=self.hit_tokens,
            evictions_total=self.evictions,
        )
