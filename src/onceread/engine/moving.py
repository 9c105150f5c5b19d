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
from onceread.engine.moved import Stretch, find_moved
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import EXACT, Sequence, Tokens
from onceread.native import stateblob
from onceread.native.context import Context
from onceread.native.errors import ContextError, StateImportFailed, StateLayoutUnknown
from onceread.native.shift import Shifter

logger = logging.getLogger(__name__)

_PIECE = 256  # tokens that are moved at a time, so that running streams hardly notice
_PATHS = 8  # of the store, the last used, that are looked through


@dataclass(slots=True, eq=False)
class _Piece:
    """Tokens [start, start + n) of a prompt, known as [source_start, source_start + n) of a path."""

    start: int
    n: int
    source_start: int
    source: Sequence | None = None  # it has their state, or
    part: Part | None = None  # a chunk does
    blob: bytes | None = None  # a copy of it
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
        self._live: list[_Piece] = []  # those that are to be copied from a sequence in the context
        pool.before_free = self._rescue

    def begin(self, prompt: Tokens, namespace: str, known: int, least: int) -> Moving | None:
        """What can be taken of ``prompt`` behind its first ``known`` tokens. None if nothing can."""
        if len(prompt) - 1 - known < least or not self._ready():
            return None
        live = [s for s in self._pool.residents + self._pool.running if s.namespace == namespace and len(s)]
        stored = self._store.recent(namespace, _PATHS) if self._store is not None else []
        paths = [s.tokens for s in live] + stored
        pieces: list[_Piece] = []
        for stretch in find_moved(prompt, known, paths, least):
            source = live[stretch.source] if stretch.source < len(live) else None
            pieces += self._pieces(namespace, paths[stretch.source], source, stretch)
        return Moving(prompt, pieces) if pieces else None

    def _pieces(
        self, namespace: str, path: Tokens, source: Sequence | None, stretch: Stretch
    ) -> list[_Piece]:
        """What the store has comes from there: it needs no copy, and never was moved before."""
        at, end = stretch.source_start, stretch.source_start + stretch.n
        delta = stretch.start - at
        pieces = []
        if self._store is not None:
            for part in self._store.match(namespace, path[:end]).parts:
                if part.end > at:
                    first = max(part.start, at)
                    pieces.append(_Piece(first + delta, part.end - first, first, part=part))
                    at = part.end
        if source is not None:
            live = [_Piece(i + delta, min(_PIECE, end - i), i, source=source) for i in range(at, end, _PIECE)]
            self._live += live
            pieces += live
        return pieces

    def _rescue(self, sequence: Sequence) -> None:
        """A sequence leaves the context: copy what is still to be taken from it."""
        for piece in [piece for piece in self._live if piece.source is sequence]:
            self._copy(piece)

    def _copy(self, piece: _Piece) -> None:
        assert piece.source is not None
        blob = self._context.export_range(piece.source.id, piece.source_start, piece.source_start + piece.n)
        piece.blob, piece.source = stateblob.in_order(blob), None
        self._live.remove(piece)

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
        if piece.source is not None:
            self._copy(piece)
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
        return stateblob.part(blob, chunk.start, piece.source_start, piece.source_start + piece.n)

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
            if piece.source is not None:
                self._live.remove(piece)
            if piece.fetch is not None and self._store is not None:
                self._store.close_fetch(piece.fetch, 0)

    def close(self) -> None:
        if self._shifter is not None:
            self._shifter.close()
