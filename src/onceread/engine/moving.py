"""Taking stretches of a prompt from other positions, where they were read before: an approximation, on demand.

What was moved had read other text before it than stands there now. So from its first moved token on a sequence is
*inexact*: never remembered, never matched by text, never shared with a request that did not ask for this.
docs/moved.md says what it does to replies.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from onceread.cache.fetch import Fetch
from onceread.cache.store import Store
from onceread.cache.tree import Part
from onceread.engine.moved import find_moved
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import EXACT, Sequence, Tokens
from onceread.native import stateblob
from onceread.native.context import Context
from onceread.native.errors import ContextError, StateImportFailed, StateLayoutUnknown
from onceread.native.shift import Shifter

logger = logging.getLogger(__name__)

_PATHS = 8  # of the store, the last used, that are looked through


@dataclass(slots=True)
class _Piece:
    """Tokens [start, start + n) of a prompt, known as [source_start, source_start + n) of a path."""

    start: int
    n: int
    source_start: int
    blob: bytes | None = None  # their state, or
    part: Part | None = None  # a chunk that has it
    fetch: Fetch | None = None


class Moving:
    """What one reply still has to take from other positions, in ascending order."""

    def __init__(self, prompt: Tokens, pieces: list[_Piece]) -> None:
        self.prompt = prompt
        self.pieces = deque(pieces)

    @property
    def next(self) -> int | None:
        """The position where the next piece goes."""
        return self.pieces[0].start if self.pieces else None


class Mover:
    """Finds, loads and moves. On the engine's thread."""

    def __init__(self, context: Context, pool: SequencePool, store: Store | None, io_timeout: float) -> None:
        self._context = context
        self._pool = pool
        self._store = store
        self._io_timeout = io_timeout
        self._shifter: Shifter | None = None
        self._refused = False

    def begin(self, prompt: Tokens, namespace: str, known: int, least: int) -> Moving | None:
        """What can be taken of ``prompt`` behind its first ``known`` tokens. None if nothing can."""
        if len(prompt) - 1 - known < least or not self._ready():
            return None
        live = [s for s in self._pool.residents + self._pool.running if s.namespace == namespace and len(s)]
        stored = self._store.recent(namespace, _PATHS) if self._store is not None else []
        paths = [s.tokens for s in live] + stored
        pieces: list[_Piece] = []
        for stretch in find_moved(prompt, known, paths, least):
            if stretch.source < len(live):
                pieces.append(self._from_context(live[stretch.source], *stretch))
            else:
                pieces += self._from_store(namespace, paths[stretch.source], *stretch)
        return Moving(prompt, pieces) if pieces else None

    def _from_context(self, source: Sequence, start: int, _: int, source_start: int, n: int) -> _Piece:
        # A copy, now: the source may go on, or have to make room for what it is copied to.
        blob = self._context.export_range(source.id, source_start, source_start + n)
        return _Piece(start, n, source_start, blob=stateblob.in_order(blob))

    def _from_store(
        self, namespace: str, path: Tokens, start: int, _: int, source_start: int, n: int
    ) -> list[_Piece]:
        assert self._store is not None
        pieces = []
        for part in self._store.match(namespace, path[: source_start + n]).parts:
            first, last = max(part.start, source_start), min(part.end, source_start + n)
            if first < last:
                pieces.append(_Piece(start + first - source_start, last - first, first, part=part))
        return pieces

    def _ready(self) -> bool:
        if self._shifter is None and not self._refused:
            try:
                self._shifter = Shifter(self._context)
            except ContextError as error:
                self._refused = True
                logger.warning("moved stretches are read again: %s", error)
        return self._shifter is not None

    def step(self, moving: Moving, sequence: Sequence, clock: int) -> int | None:
        """Take the piece that goes to the sequence's end: its tokens, 0 if they must be read; None = wait."""
        piece = moving.pieces[0]
        if piece.part is not None and self._store is not None:
            if piece.fetch is None:
                piece.fetch = self._store.fetch(piece.part)
            if not piece.fetch.done and not self._store.stuck(self._io_timeout):
                return None
        moving.pieces.popleft()
        taken = 0
        try:
            blob = self._cut_out(piece)
            if blob is not None and self._pool.make_room(piece.n, clock):
                self._append(sequence, piece, blob, moving.prompt)
                taken = piece.n
        except (StateImportFailed, StateLayoutUnknown) as error:
            logger.error("a stretch of %d tokens can't be moved, it is read again: %s", piece.n, error)
        finally:
            if piece.fetch is not None and self._store is not None:
                self._store.close_fetch(piece.fetch, taken)
        return taken

    @staticmethod
    def _cut_out(piece: _Piece) -> bytes | None:
        if piece.part is None or piece.fetch is None:
            return piece.blob
        chunk, blob = piece.part.chunk, piece.fetch.blob
        if blob is None:
            return None
        stateblob.check(blob, chunk.start, chunk.n)
        end = piece.source_start + piece.n
        if end < chunk.end:
            blob = stateblob.cut(blob, end - chunk.start)[0]
        if piece.source_start > chunk.start:
            blob = stateblob.cut(blob, piece.source_start - chunk.start)[1]
        return blob

    def _append(self, sequence: Sequence, piece: _Piece, blob: bytes, prompt: Tokens) -> None:
        assert self._shifter is not None
        start, n = piece.start, piece.n
        self._shifter.append_moved(sequence.id, blob, piece.source_start, start, n)
        tokens = prompt[start : start + n]
        sequence.append(tokens, self._pool.ledger.take(tokens, start))
        sequence.exact_until = min(sequence.exact_until, start)

    def skip(self, moving: Moving, position: int = EXACT) -> None:
        """Nothing that begins before ``position`` is to be taken any more."""
        while moving.pieces and moving.pieces[0].start < position:
            piece = moving.pieces.popleft()
            if piece.fetch is not None and self._store is not None:
                self._store.close_fetch(piece.fetch, 0)

    def close(self) -> None:
        if self._shifter is not None:
            self._shifter.close()
