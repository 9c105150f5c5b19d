"""Loading from the store into the context: a chunk at a time, so that running streams hardly notice."""

from __future__ import annotations

import logging
from collections import deque

import numpy as np

from onceread.cache.fetch import Fetch, Source
from onceread.cache.store import Store
from onceread.cache.tree import Part
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence, Tokens
from onceread.native import checkpoints, stateblob
from onceread.native.context import Context
from onceread.native.errors import SequenceWrong, StateImportFailed, StateLayoutUnknown

logger = logging.getLogger(__name__)

_AHEAD = 4  # chunks that are read from disk before they are needed
_TRIES = 8  # times that a reply looks for another way to what it could not load

Counted = tuple[int, dict[Source, int]]
"""Prompt tokens of a request that were shared in the context, and that were loaded, by source."""


class Recall:
    """What one reply still has to load: tokens of ``prompt`` before position ``last``, into ``sequence``."""

    def __init__(self, prompt: Tokens, sequence: Sequence, counted: Counted, last: int) -> None:
        """``counted``: what the request was told of so far. ``last``: from here on it wants to evaluate."""
        self.prompt = prompt
        self.last = last
        self.sequence = sequence
        self.todo: deque[Part] = deque()
        self.under_way: deque[tuple[Part, Fetch]] = deque()
        self.tries = 0
        self._counted = counted
        self.loaded: list[tuple[int, int, Source]] = []  # from, to, and whence
        self.goal = 0  # where the sequence will end, of a memory that needs a checkpoint

    @property
    def over(self) -> bool:
        return not self.todo and not self.under_way

    def counts(self) -> Counted:
        """What the request is to be told now: nothing of what can't be gone on from."""
        kept, loaded = self._counted
        usable = len(self.sequence) if self.sequence.settled else 0
        loaded = dict(loaded)
        for start, end, source in self.loaded:
            loaded[source] += max(0, min(end, usable) - start)
        return min(kept, usable), loaded


class Recaller:
    """Runs recalls. On the engine's thread."""

    def __init__(self, context: Context, pool: SequencePool, store: Store, io_timeout: float) -> None:
        self._context = context
        self._pool = pool
        self._store = store
        self._io_timeout = io_timeout

    def begin(self, prompt: Tokens, sequence: Sequence, counted: Counted, last: int) -> Recall | None:
        """Load what the store has of ``prompt`` beyond ``sequence`` and before ``last``. None if it has nothing."""
        recall = Recall(prompt, sequence, counted, last)
        recall.todo.extend(self._parts(recall))
        if recall.over:
            self._settle_for_less(recall)
            return None
        return recall

    def _parts(self, recall: Recall) -> list[Part]:
        """What is to be loaded; for a memory that needs a checkpoint, that comes last."""
        prompt, sequence = recall.prompt, recall.sequence
        if self._pool.cuttable:
            match = self._store.match(sequence.namespace, prompt[: recall.last])
            return [part for part in match.parts if part.end > len(sequence)]
        found = self._store.checkpoint(sequence.namespace, prompt[: recall.last])
        if found is None or (sequence.settled and found.length <= len(sequence)):
            return []
        recall.goal = found.length
        return [*(part for part in found.parts if part.end > len(sequence)), found.state]

    def step(self, recall: Recall, clock: int) -> bool:
        """Load one chunk if it is there. False if there is nothing to do but wait."""
        while recall.todo and len(recall.under_way) < _AHEAD:
            part = recall.todo.popleft()
            recall.under_way.append((part, self._store.fetch(part)))
        if not recall.under_way:
            return False
        part, fetch = recall.under_way[0]
        if not fetch.done and not self._store.stuck(self._io_timeout):
            return False
        recall.under_way.popleft()
        used, taken = 0, False
        try:
            if part.chunk.n:
                used = self._take(recall, part, fetch, clock)
                taken = used > 0
            else:
                taken = self._take_checkpoint(recall, part, fetch, clock)
        except (StateImportFailed, StateLayoutUnknown, SequenceWrong) as error:
            what = f"a chunk of {part.chunk.n} tokens" if part.chunk.n else f"the checkpoint at {part.start}"
            logger.error("%s can't be loaded, it is read again: %s", what, error)
            self._store.spoil(part.chunk)
            if not self._pool.cuttable:
                self._pool.empty(recall.sequence)  # as llama.cpp's sequence is now
                recall.loaded.clear()
        finally:
            self._store.close_fetch(fetch, used)
        if not taken:
            self._look_again(recall, part)
        return True

    def _take(self, recall: Recall, part: Part, fetch: Fetch, clock: int) -> int:
        sequence, chunk = recall.sequence, part.chunk
        start, end = len(sequence), part.end
        if fetch.blob is None or start < chunk.start:
            return 0
        tokens = recall.prompt[start:end]
        assert np.array_equal(tokens, chunk.array[start - chunk.start : end - chunk.start])
        stateblob.check(fetch.blob, chunk.start, chunk.n)
        # No cells are spent on what is not wanted, not even for a moment: there may be none to spare.
        blob = stateblob.part(fetch.blob, chunk.start, start, end)
        if not self._pool.make_room(end - start, clock):
            return 0
        if self._pool.cuttable:
            self._context.import_range(sequence.id, blob, start, end)
        else:
            sequence.settled = False
            checkpoints.attach(self._context, sequence.id, blob, start, end)
        sequence.append(tokens, self._pool.ledger.take(tokens, start))
        recall.loaded.append((start, end, fetch.source))
        return end - start

    def _take_checkpoint(self, recall: Recall, part: Part, fetch: Fetch, clock: int) -> bool:
        sequence, length = recall.sequence, part.end
        if fetch.blob is None or len(sequence) < length or not self._pool.make_room(0, clock):
            return False
        sequence.settled = False
        checkpoints.settle(self._context, sequence.id, fetch.blob, length)
        sequence.truncate(length, self._pool.ledger)
        sequence.marks = sorted({mark for mark in sequence.marks if mark < length} | {length})
        sequence.settled = True
        return True

    def _look_again(self, recall: Recall, lost: Part) -> None:
        """A chunk could not be had. Another may hold the same tokens: it may just have been split, or replaced."""
        self.cancel(recall)
        recall.tries += 1
        if recall.tries <= _TRIES:
            parts = self._parts(recall)
            if parts and parts[0].chunk is not lost.chunk:
                recall.todo.extend(parts)
        if recall.over:
            self._settle_for_less(recall)

    def _settle_for_less(self, recall: Recall) -> None:
        """Nothing more comes. What can't be gone on from is given up, and read again from the beginning."""
        if not recall.sequence.settled:
            self._pool.empty(recall.sequence)
            recall.loaded.clear()

    def cancel(self, recall: Recall) -> None:
        """Nothing more is to be loaded."""
        recall.todo.clear()
        while recall.under_way:
            self._store.close_fetch(recall.under_way.popleft()[1], 0)
