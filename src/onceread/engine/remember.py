"""Giving what was read to the store: a chunk at a time, while sequences grow and after they are finished."""

from __future__ import annotations

import logging
from enum import Enum, auto

from onceread.cache.cuts import MIN_CHUNK
from onceread.cache.store import Store
from onceread.engine.marks import NEAR
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence
from onceread.native import checkpoints, stateblob
from onceread.native.context import Context
from onceread.native.errors import StateExportFailed, StateLayoutUnknown

logger = logging.getLogger(__name__)


class _Export(Enum):
    DONE = auto()
    NOTHING = auto()  # the store has it all
    NO_ROOM = auto()  # nor will there be for what follows


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
            if not (sequence.saved or sequence.refused) and self._finish_a_bit(sequence):
                return True
        for sequence in self._pool.running:
            # It has grown by what may be a chunk since it was last looked at.
            if (
                sequence.settled
                and len(sequence) - sequence.looked >= MIN_CHUNK
                and self._export(sequence, final=False) is _Export.DONE
            ):
                return True
        return False

    def finish(self, sequence: Sequence) -> None:
        """Export all of a finished sequence now: its room is needed, or it goes on."""
        while not (sequence.saved or sequence.refused) and self._finish_a_bit(sequence):
            pass

    def _finish_a_bit(self, sequence: Sequence) -> bool:
        """One chunk, or the checkpoint at the end. False if there was nothing to export."""
        export = self._export(sequence, final=True)
        if export is _Export.DONE:
            return True
        # What was moved is not for the store, so such a sequence is never wholly there.
        sequence.saved = export is _Export.NOTHING and len(sequence.exact) == len(sequence)
        if sequence.saved and not self._pool.cuttable:
            sequence.saved = self.checkpoint(sequence)  # the next turn goes on from where this one ended
        sequence.refused = not sequence.saved
        return False

    def checkpoint(self, sequence: Sequence) -> bool:
        """Keep the state of a sequence where it ends now, and all before it. False if it can't be kept.

        Room is made before the state is taken: it may be larger than all else.
        """
        store, namespace, tokens = self._store, sequence.namespace, sequence.tokens
        export = _Export.DONE
        while export is _Export.DONE:
            export = self._export(sequence, final=True)
        if export is _Export.NO_ROOM:
            return False
        below = store.checkpoint(namespace, tokens)
        reach = len(tokens) - (below.length if below is not None else 0)
        if reach <= NEAR:
            return True
        size = self._context.state_size(sequence.id, partial=True)
        if not store.room_for_checkpoint(namespace, tokens, size):
            return False
        try:
            state = checkpoints.checkpoint(self._context, sequence.id, len(tokens))
        except (StateExportFailed, StateLayoutUnknown) as error:
            logger.error("no checkpoint of a sequence of %d tokens: %s", len(tokens), error)
            return False
        return store.put_checkpoint(namespace, tokens, state, reach=reach, text=sequence.alignable)

    def _export(self, sequence: Sequence, *, final: bool) -> _Export:
        """One chunk."""
        store, namespace, tokens = self._store, sequence.namespace, sequence.exact
        gap = store.gap(namespace, tokens, final=final, cuts=sequence.marks)
        if gap is not None:
            state = self._state(sequence, *gap)
            if store.put(namespace, tokens, *gap, state, text=sequence.alignable):
                return _Export.DONE
        sequence.looked = len(sequence)
        return _Export.NO_ROOM if gap is not None else _Export.NOTHING

    def _state(self, sequence: Sequence, start: int, end: int) -> bytes:
        if not self._pool.cuttable:
            return checkpoints.segment(self._context, sequence.id, start, end)
        # llama.cpp gives cells in the order in which they lie, and among the gaps that others left that is
        # not the order of their positions.
        blob = stateblob.in_order(self._context.export_range(sequence.id, start, end))
        stateblob.check(blob, start, end - start)
        return blob
