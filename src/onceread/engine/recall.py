"""Loading from the store into the context: a chunk at a time, so that running streams hardly notice."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

import numpy as np

from onceread.cache.fetch import Fetch, Source
from onceread.cache.store import Store
from onceread.cache.tree import Part
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence, Tokens
from onceread.native import stateblob
from onceread.native.context import Context
from onceread.native.errors import StateImportFailed, StateLayoutUnknown

logger = logging.getLogger(__name__)

_AHEAD = 4  # chunks that are read from disk before they are needed
_TRIES = 8  # times that a reply looks for another way to what it could not load


class Loaded(NamedTuple):
    """Tokens that came from a tier; 0 if none did just now."""

    source: Source
    n: int


class Recall:
    """What one reply still has to load: tokens of ``prompt`` up to its last but one, into ``sequence``."""

    def __init__(self, prompt: Tokens, sequence: Sequence, parts: tuple[Part, ...]) -> None:
        self.prompt = prompt
        self.sequence = sequence
        self.todo = deque(parts)
        self.under_way: deque[tuple[Part, Fetch]] = deque()
        self.tries = 0

    @property
    def over(self) -> bool:
        return not self.todo and not self.under_way


class Recaller:
    """Runs recalls. On the engine's thread."""

    def __init__(self, context: Context, pool: SequencePool, store: Store, io_timeout: float) -> None:
        self._context = context
        self._pool = pool
        self._store = store
        self._io_timeout = io_timeout

    def begin(self, prompt: Tokens, sequence: Sequence) -> Recall | None:
        """Load what the store has of ``prompt`` beyond ``sequence``, all but the last token. None if it has nothing."""
        parts = self._parts(prompt, sequence)
        return Recall(prompt, sequence, parts) if parts else None

    def _parts(self, prompt: Tokens, sequence: Sequence) -> tuple[Part, ...]:
        match = self._store.match(sequence.namespace, prompt[:-1])
        return tuple(part for part in match.parts if part.end > len(sequence))

    def step(self, recall: Recall, clock: int) -> Loaded | None:
        """Load one chunk if it is there. None if there is nothing to do but wait."""
        while recall.todo and len(recall.under_way) < _AHEAD:
            part = recall.todo.popleft()
            recall.under_way.append((part, self._store.fetch(part)))
        if not recall.under_way:
            return None
        part, fetch = recall.under_way[0]
        if not fetch.done and not self._store.stuck(self._io_timeout):
            return None
        recall.under_way.popleft()
        used = 0
        try:
            used = self._take(recall, part, fetch, clock)
        except (StateImportFailed, StateLayoutUnknown) as error:
            logger.error("a chunk of %d tokens can't be loaded, it is read again: %s", part.chunk.n, error)
            self._store.spoil(part.chunk)
        finally:
            self._store.close_fetch(fetch, used)
        if not used:
            self._look_again(recall, part)
        return Loaded(fetch.source, used)

    def _take(self, recall: Recall, part: Part, fetch: Fetch, clock: int) -> int:
        sequence, chunk = recall.sequence, part.chunk
        start, end = len(sequence), part.end
        if fetch.blob is None or start < chunk.start:
            return 0
        tokens = recall.prompt[start:end]
        assert np.array_equal(tokens, chunk.array[start - chunk.start : end - chunk.start])
        blob = fetch.blob
        stateblob.check(blob, chunk.start, chunk.n)
        # No cells are spent on what is not wanted, not even for a moment: there may be none to spare.
        if end < chunk.end:
            blob = stateblob.cut(blob, end - chunk.start)[0]
        if start > chunk.start:
            blob = stateblob.cut(blob, start - chunk.start)[1]
        if not self._pool.make_room(end - start, clock):
            return 0
        self._context.import_range(sequence.id, blob, start, end)
        sequence.append(tokens, self._pool.ledger.take(tokens, start))
        return end - start

    def _look_again(self, recall: Recall, lost: Part) -> None:
        """A chunk could not be had. Another may hold the same tokens: it may just have been split, or replaced."""
        self.cancel(recall)
        recall.tries += 1
        if recall.tries > _TRIES:
            return
        parts = self._parts(recall.prompt, recall.sequence)
        if parts and parts[0].chunk is not lost.chunk:
            recall.todo.extend(parts)

    def cancel(self, recall: Recall) -> None:
        """Nothing more is to be loaded."""
        recall.todo.clear()
        while recall.under_way:
            self._store.close_fetch(recall.under_way.popleft()[1], 0)
