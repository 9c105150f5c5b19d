"""The memory tier: blobs in RAM, within a budget of bytes, the least valuable leaves given up first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

from onceread.cache.chunk import Chunk
from onceread.cache.contract import CHECKPOINTS, TierStats
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
        self.checkpoints = 0
        self.checkpoint_bytes = 0  # of ``used``
        self.hit_tokens = 0
        self.evictions = 0
        self._tree = tree
        self.taken_in = 0.0  # bytes since the start: the time by which occasions are told apart
        self.apart = APART * budget
        self._clock = 0.0  # the same in terms of worth, see value.py
        self._bare = 0  # bytes taken in that are worth nothing by themselves, since the last checkpoint
        self._leaves = _Queue()  # and what was one or may become one
        self._states = _Queue()  # the checkpoints among them

    @property
    def checkpoint_room(self) -> int:
        """Bytes that all checkpoints together may take."""
        return int(self.budget * CHECKPOINTS)

    def put(self, chunk: Chunk, blob: bytes, *, keep_unwritten: bool) -> Room:
        """Hold ``blob`` for ``chunk``, making room first.

        With ``keep_unwritten`` chunks that wait to be written to disk stay.
        """
        assert chunk.blob is None
        size = len(blob) + NODE_BYTES
        self.taken_in += size
        self._grow_older(chunk, len(blob))
        if chunk.is_checkpoint:
            room = self.make_checkpoint_room(len(blob), chunk.parent, keep_unwritten=keep_unwritten)
        else:
            room = self._make_room(size, keep_unwritten, chunk.parent)
        if room.made:
            chunk.blob = blob
            self._count(chunk, 1)
            self.touch(chunk)
        return room

    def make_checkpoint_room(self, size: int, parent: bytes, *, keep_unwritten: bool) -> Room:
        """Make room for a checkpoint of the prefix ``parent``, within the budget and among checkpoints."""
        size += NODE_BYTES
        victims = self._checkpoints_to_go(self.checkpoint_bytes + size - self.checkpoint_room, keep_unwritten)
        if victims is None:
            return Room(False, [])
        for victim in victims:
            self._evict(victim)
        room = self._make_room(size, keep_unwritten, parent)
        return Room(room.made, victims + room.victims)

    def widen(self, chunk: Chunk, size: int, *, keep_unwritten: bool) -> Room:
        """Make room for two chunks with together ``size`` bytes in place of one that is here."""
        assert chunk.blob is not None
        chunk.leases += 1  # it is not to be evicted itself
        room = self._make_room(size - len(chunk.blob) + NODE_BYTES, keep_unwritten, chunk.parent)
        chunk.leases -= 1
        return room

    def drop(self, chunk: Chunk) -> None:
        """Give up a chunk's blob."""
        self._count(chunk, -1)
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
        # What is worth nothing goes before everything else, the oldest first: negative, and rising.
        chunk.priority = -1 / (1 + self.taken_in) if chunk.bare else self._clock + chunk.value
        self._push(chunk)

    def _grow_older(self, chunk: Chunk, size: int) -> None:
        """The clock rises by as much for a turnover of the tier, whatever it is that comes in."""
        takes = size + NODE_BYTES
        if chunk.bare:
            self._bare += takes
        elif chunk.is_checkpoint:
            # It carries the worth of the chunks before it as well. Or if it is larger than those, checkpoints
            # push each other out, for they have half of the tier to themselves.
            takes = max(takes + self._bare, int(takes / CHECKPOINTS))
            self._clock += age(chunk.reach, self.budget) * takes / max(size, 1)
            self._bare = 0
        else:
            self._clock += age(chunk.n, self.budget)

    def _count(self, chunk: Chunk, sign: int) -> None:
        assert chunk.blob is not None
        size = len(chunk.blob) + NODE_BYTES
        self.used += sign * size
        if chunk.is_checkpoint:
            self.checkpoints += sign
            self.checkpoint_bytes += sign * size
        else:
            self.chunks += sign
            self.tokens += sign * chunk.n

    def _push(self, chunk: Chunk) -> None:
        self._leaves.push(chunk, self.chunks + self.checkpoints)
        if chunk.is_checkpoint:
            self._states.push(chunk, self.checkpoints)

    def _make_room(self, size: int, keep_unwritten: bool, parent: bytes) -> Room:
        """``parent``: the prefix that the newcomer continues."""
        victims: list[Chunk] = []
        if size > self.budget:
            return Room(False, victims)

        def may_go(chunk: Chunk) -> bool:
            return not self._must_stay(chunk, keep_unwritten) and chunk.key.name != parent

        passed: list[_Entry] = []
        while self.used + size > self.budget:
            entry = self._leaves.pop(may_go, passed, of_interest=self._is_leaf)
            if entry is None:
                break
            self._evict(entry.chunk)
            victims.append(entry.chunk)
        self._leaves.put_back(passed)
        return Room(self.used + size <= self.budget, victims)

    def _checkpoints_to_go(self, excess: int, keep_unwritten: bool) -> list[Chunk] | None:
        """The least valuable checkpoints that take ``excess`` bytes; None if even all that may go are too few."""
        chosen: dict[Chunk, _Entry] = {}
        passed: list[_Entry] = []
        while excess > 0:
            entry = self._states.pop(
                lambda chunk: not self._must_stay(chunk, keep_unwritten),
                passed,
                of_interest=lambda chunk: chunk not in chosen,
            )
            if entry is None:
                self._states.put_back([*passed, *chosen.values()])
                return None
            chosen[entry.chunk] = entry
            excess -= entry.chunk.size + NODE_BYTES
        self._states.put_back(passed)
        return list(chosen)

    def _evict(self, victim: Chunk) -> None:
        self.drop(victim)
        self.evictions += 1

    def _is_leaf(self, chunk: Chunk) -> bool:
        if any(other is not chunk and other.blob is not None for other in self._tree.ending(chunk.key.name)):
            return True  # another one leads to the same children
        return not any(child.blob is not None for child in self._tree.following(chunk.key.name))

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
            checkpoints=self.checkpoints,
            checkpoint_bytes=self.checkpoint_bytes,
        )


class _Entry(NamedTuple):
    priority: float
    place: int  # deeper first
    order: int  # the older one first
    chunk: Chunk


class _Queue:
    """Chunks by their priority. What has no blob, or another priority by now, is passed over when it comes up."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._order = itertools.count()

    def push(self, chunk: Chunk, expected: int) -> None:
        """Again, whenever its priority has changed. ``expected``: how many chunks there are about."""
        heapq.heappush(self._heap, _Entry(chunk.priority, -chunk.start, next(self._order), chunk))
        if len(self._heap) > 4 * expected + 64:
            live = {
                id(e.chunk): e
                for e in self._heap
                if e.chunk.blob is not None and e.priority == e.chunk.priority
            }
            self._heap = list(live.values())
            heapq.heapify(self._heap)

    def pop(
        self,
        may_go: Callable[[Chunk], bool],
        passed: list[_Entry],
        of_interest: Callable[[Chunk], bool],
    ) -> _Entry | None:
        """The first that may go. Those before it that may not are added to ``passed``, to be put back."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            chunk = entry.chunk
            if chunk.blob is None or chunk.priority != entry.priority or not of_interest(chunk):
                continue
            if may_go(chunk):
                return entry
            passed.append(entry)
        return None

    def put_back(self, entries: list[_Entry]) -> None:
        for entry in entries:
            heapq.heappush(self._heap, entry)
