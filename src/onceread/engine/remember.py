"""Giving what was read to the store: a chunk at a time, while sequences grow and after they are finished."""

from __future__ import annotations

from onceread.cache.cuts import MIN_CHUNK
from onceread.cache.store import Store
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence
from onceread.native import stateblob
from onceread.native.context import Context


class Rememberer:
    """Exports what the store lacks. On the engine's thread."""

    def __init__(self, context: Context, pool: SequencePool, store: Store) -> None:
        self._context = context
        self._pool = pool
        self._store = store

    @property
    def behind(self) -> bool:
        """Is there a finished sequence that the store does not have yet?"""
        return any(not (resident.saved or resident.refused) for resident in self._pool.residents)

    def step(self) -> bool:
        """Export one chunk, of the longest finished sequence first. False if there is none to export."""
        for sequence in self._pool.residents:
            if not (sequence.saved or sequence.refused) and self._export(sequence, final=True):
                return True
        for sequence in self._pool.running:
            # It has grown by what may be a chunk since it was last looked at.
            if len(sequence) - sequence.looked >= MIN_CHUNK and self._export(sequence, final=False):
                return True
        return False

    def finish(self, sequence: Sequence) -> None:
        """Export all of a finished sequence now: its room is needed."""
        while not (sequence.saved or sequence.refused) and self._export(sequence, final=True):
            pass

    def _export(self, sequence: Sequence, *, final: bool) -> bool:
        tokens = sequence.tokens
        gap = self._store.gap(sequence.namespace, tokens, final=final)
        if gap is not None:
            start, end = gap
            # llama.cpp gives cells in the order in which they lie, and among the gaps that others left that is
            # not the order of their positions.
            blob = stateblob.in_order(self._context.export_range(sequence.id, start, end))
            stateblob.check(blob, start, end - start)
            if self._store.put(sequence.namespace, tokens, start, end, blob, text=sequence.alignable):
                return True
            # There is no room for it, and there will be none for what follows it.
            sequence.refused = final
        sequence.looked = len(tokens)
        sequence.saved = final and not sequence.refused
        return False
