"""One batch: a token for each reply that is being written, and as much of the prompts being read as there is room."""

from __future__ import annotations

import time
from dataclasses import dataclass

from onceread.engine.config import EngineConfig
from onceread.engine.marks import Marker
from onceread.engine.pool import SequencePool
from onceread.engine.reply import Phase, Reply
from onceread.engine.slicing import Pace, divide
from onceread.engine.turns import Turns
from onceread.native.batch import Batch
from onceread.native.context import Context


@dataclass(slots=True)
class Entry:
    """A reply's part of the batch: ``n`` tokens, its logits at ``index`` if it wants them."""

    reply: Reply
    n: int
    index: int
    samples: bool


class Batcher:
    """Fills the context's batch, computes it, and keeps the account of what it took. On the engine's thread."""

    def __init__(
        self,
        context: Context,
        pool: SequencePool,
        config: EngineConfig,
        marker: Marker | None,
        turns: Turns,
    ) -> None:
        """``marker``: None if no checkpoints are to be taken. ``turns``: held while the batch is computed."""
        self._turns = turns
        self._context = context
        self._pool = pool
        self._exact = config.exact
        self._marker = marker
        self._batch = Batch(context.n_batch)
        self._pace = Pace(config.slice_seconds, config.min_slice)

    def fill(self, active: list[Reply], clock: int) -> list[Entry] | None:
        """The next batch. None if the replies don't fit together: one of them must step aside."""
        batch = self._batch
        batch.clear()
        writers = [r for r in active if r.phase is Phase.WRITING][: batch.capacity]
        if not self._pool.make_room(len(writers), clock):
            return None
        entries = []
        for reply in writers:
            assert reply.sequence is not None
            index = batch.add_one(reply.pending, len(reply.sequence), reply.sequence.id)
            entries.append(Entry(reply, 1, index, True))
        readers = [r for r in active if r.phase is Phase.READING and not r.waits_for_state]
        for reply in readers:
            self._decide_marks(reply)
        shares = divide([r.readable for r in readers], self._slice_room(beside=len(writers)))
        for reply, share in zip(readers, shares, strict=True):
            n = self._room_for(share, batch.n, clock)
            if n > 0:
                entries.append(self._read(reply, n))
        # Readers that got nothing wait for room that only another reader could give.
        return entries if entries or not readers else None

    def _decide_marks(self, reply: Reply) -> None:
        """A prompt is about to be read: where are checkpoints to be taken?"""
        assert reply.sequence is not None
        start = len(reply.sequence)
        if reply.marks is None:
            marker = self._marker
            asked = reply.keep_at
            reply.set_marks(
                marker.marks(reply.prompt, start, reply.known, asked) if marker is not None else []
            )
        while reply.marks and reply.marks[0] <= start:
            reply.marks.pop(0)  # it was loaded over it

    def _room_for(self, n: int, taken: int, clock: int) -> int:
        """How many of ``n`` cells can be had beside ``taken`` ones that this batch uses already."""
        self._pool.make_room(n + taken, clock)
        return min(n, self._pool.free - taken)

    def _slice_room(self, beside: int) -> int:
        """How many prompt tokens this turn may read beside ``beside`` replies that are being written."""
        room = self._batch.room
        return min(room, self._pace.beside(beside)) if beside else room

    def _read(self, reply: Reply, n: int) -> Entry:
        sequence = reply.sequence
        assert sequence is not None
        if not reply.job.first_slice:
            reply.job.first_slice = time.monotonic()
        start = len(sequence)
        complete = start + n == len(reply.prompt)
        end = start + n
        rows_from = end if reply.rows_from is None else min(end, max(start, reply.rows_from))
        index = -1
        if rows_from > start:
            index = self._batch.add(reply.prompt[start:rows_from], start, sequence.id, logits_last=complete)
        if rows_from < end:
            index = self._batch.add(
                reply.prompt[rows_from:end], rows_from, sequence.id, logits_last=complete, outputs=True
            )
        return Entry(reply, n, index, complete)

    def compute(self, entries: list[Entry]) -> None:
        """Decode what was filled in. Raises what `Context.decode` does."""
        padded = self._exact and self._batch.n == 1
        if padded:
            self._batch.add([entries[0].reply.prompt[0]], 0, self._context.tmp, logits_last=False)
        with self._turns:
            started = time.perf_counter()
            self._context.decode(self._batch)
            seconds = time.perf_counter() - started
        if padded:
            self._context.drop(self._context.tmp)
        self._account(entries, seconds)

    def _account(self, entries: list[Entry], seconds: float) -> None:
        ledger = self._pool.ledger
        read = 0
        for entry in entries:
            reply, sequence = entry.reply, entry.reply.sequence
            assert sequence is not None
            start = len(sequence)
            if reply.phase is Phase.WRITING:
                sequence.append_one(reply.pending, ledger.take_one(reply.pending, start))
            else:
                tokens = reply.prompt[start : start + entry.n]
                sequence.append(tokens, ledger.take(tokens, start))
                reply.job.evaluated += entry.n
                read += entry.n
        self._pace.observe(read, seconds)

    def close(self) -> None:
        self._batch.close()
