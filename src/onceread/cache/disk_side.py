"""The disk behind the store: what is written, read and looked up there, each on a thread of its own.

Nobody but those threads ever waits for the disk. When it fails, the store goes on from RAM, says so once,
and tries again now and then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

from onceread.cache.chunk import Chunk
from onceread.cache.contract import Key, Pin, Record, TierStats
from onceread.cache.disk import DiskTier
from onceread.cache.errors import ChunkDamaged, ChunkGone, DiskUnusable, NoRoom, PinRefused
from onceread.cache.fetch import Fetch
from onceread.cache.holdings import Holdings
from onceread.cache.index import Row, Totals
from onceread.cache.names import NOT_TEXT
from onceread.cache.sizes import binary
from onceread.cache.value import APART, occasions
from onceread.cache.worker import Worker

logger = logging.getLogger(__name__)

_RETRY = 30.0  # seconds after a failure before the disk is tried again
_PIN_WAIT = 5.0  # seconds that a pin waits for what is being written
_PATIENCE = 0.25  # seconds that anyone waits for the index


class DiskSide:
    """Everything that is wanted of the disk, in the order in which it may happen."""

    def __init__(self, tier: DiskTier, holdings: Holdings, wake: Callable[[], None]) -> None:
        self._tier = tier
        self._holdings = holdings
        self._lock = holdings.lock
        self._wake = wake
        self._failure: str | None = None
        self._unreadable = False  # it failed in reading, not just in writing
        self._retry_at = 0.0
        self._reading_since = 0.0
        self._late = False  # the last look at the index did not come back in time
        self._closing = False
        self._totals = Totals(0, 0, 0, 0, 0)
        self._waiting: dict[Chunk, None] = {}  # to be written, the longest waiting first
        self._touched: set[Chunk] = set()
        self.pins: list[Pin] | None = None  # as they are on disk, when they changed
        self.hit_tokens = 0
        self._evictions = self._damaged = 0
        holdings.keep_unwritten = True
        self._writer = Worker("onceread-cache-writer", tidy=self._tidy)
        self._reader = Worker("onceread-cache-reader")
        self._looker = Worker("onceread-cache-index")

    # -- the index ---------------------------------------------------------

    def read_index(self) -> None:
        """Take in all that the directory holds for this model."""
        with self._lock:
            rows = self._tier.rows()
            for row in rows:
                self._take_in(row)
            if self._holdings.checkpointed:
                overrated = [row.key for row in rows if not row.record.is_checkpoint and row.use.value > 0]
                self._tier.devalue(overrated)  # the index was built anew by somebody who could not know
            self.pins = self._tier.pins()
            self._totals = self._tier.totals()
            memory = self._holdings.memory
            memory.apart = APART * max(memory.budget, self._totals.budget)

    def refresh(self, timeout: float) -> None:
        """Take in what other processes did, if that can be known within ``timeout`` seconds."""
        if self._unreadable or (self._late and not self._looker.wait_idle(0)):
            return
        self._late = not self._looker.do(self._look, timeout)

    def _look(self) -> None:
        try:
            changes = self._tier.refresh()
            pins = self._tier.pins() if changes.pins else None
            self._totals = self._tier.totals()
        except DiskUnusable as error:
            self.fail(str(error), reading=True)
            return
        if not (changes.added or changes.removed or changes.pins):
            return
        with self._lock:
            for key in changes.removed:
                self._holdings.lose_file(key)
            for row in changes.added:
                self._take_in(row)
            if pins is not None:
                self.pins = pins

    def _take_in(self, row: Row) -> None:
        record = row.record
        self._holdings.namespaces.setdefault(record.root, record.namespace)
        chunk = self._holdings.tree.get(record.key)
        if chunk is None:
            text = not record.spelled.startswith(NOT_TEXT)
            chunk = self._holdings.chunk(
                record.root, record.parent, record.key, record.tokens, text=text, reach=record.reach
            )
            chunk.hits, chunk.last_used = row.use.hits, row.use.last_used
            chunk.occasions = occasions(row.use.value, *record.saved, row.file_bytes)
            chunk.counted = -math.inf  # the next use is another occasion
            self._holdings.tree.add(chunk)
        chunk.file, chunk.file_bytes = None, row.file_bytes
        chunk.pinned = chunk.pinned or row.pinned

    def touch(self, chunks: Iterable[Chunk]) -> None:
        """Chunks were used: the index will know soon."""
        with self._lock:
            self._touched.update(chunk for chunk in chunks if chunk.file_bytes and chunk.file is None)
        self._writer.mark_untidy()

    def _tidy(self) -> None:
        if self._failure is not None and not self._closing:
            self._try_again()
        self._flush_touched()

    def _try_again(self) -> None:
        """Once the pause after a failure is over, see whether the disk can be written to."""
        if time.monotonic() >= self._retry_at and not self._reading_since:
            late = self._late_chunks()
            try:
                if late:
                    self._write(late[0], ())
                else:
                    self._tier.touch([])
                    self._works()
            except DiskUnusable as error:
                self.fail(str(error))
        if self._failure is not None:
            self._writer.mark_untidy()

    def _flush_touched(self) -> None:
        with self._lock:
            uses = [(c.key, c.use) for c in self._touched if c.file_bytes]
            self._touched.clear()
        if uses and self._failure is None:
            try:
                self._tier.touch(uses)
            except DiskUnusable as error:
                self.fail(str(error))

    # -- writing -----------------------------------------------------------

    def write(self, chunk: Chunk, replaces: Sequence[Key] = ()) -> None:
        """Write a chunk's blob, then remove the chunks that it replaces."""
        with self._lock:
            if self._failure is not None and time.monotonic() < self._retry_at:
                return
            chunk.queued = time.monotonic()
            self._waiting[chunk] = None
        self._writer.add(lambda: self._write(chunk, replaces))

    def split(self, wide: Record, head: Chunk, tail: Chunk) -> None:
        """Give the halves of a split chunk files of their own, in place of ``wide``, the file they share."""
        self._writer.add(lambda: self._write_halves(wide, (head, tail)))

    def _write(self, chunk: Chunk, replaces: Sequence[Key]) -> None:
        with self._lock:
            todo = self._unwritten(chunk)
        for each, blob in todo:
            if not self._write_blob(each, blob):
                break  # nothing could be found behind it
        with self._lock:
            chunk.queued = 0.0
            self._waiting.pop(chunk, None)
            written = chunk.file_bytes > 0
        if replaces and written:
            self._remove(replaces)

    def _unwritten(self, chunk: Chunk) -> list[tuple[Chunk, bytes]]:
        """A chunk and before it those that it continues, as far as they are in RAM and not on disk (any more)."""
        found: list[tuple[Chunk, bytes]] = []
        last: Chunk | None = chunk
        while last is not None and last.blob is not None and not last.file_bytes:
            if self._holdings.tree.get(last.key) is not last:
                break
            found.append((last, last.blob))
            before = self._holdings.tree.ending(last.parent)
            last = max(before, key=lambda c: c.file_bytes, default=None)
        return found[::-1]

    def _write_blob(self, chunk: Chunk, blob: bytes) -> bool:
        """False if it is not on disk now."""
        with self._lock:
            record, use, pinned = self._holdings.record(chunk), chunk.use, chunk.pinned
        try:
            written = self._tier.write(record, blob, use, pinned=pinned)
        except NoRoom as error:
            logger.debug("a chunk is not kept on disk: %s", error)
            return False
        except DiskUnusable as error:
            self.fail(str(error))
            return False
        with self._lock:
            for fingerprint, key in written.evicted:
                self._evictions += 1
                if fingerprint == self._tier.fingerprint:
                    self._holdings.lose_file(key)
            in_tree = self._holdings.tree.get(chunk.key)
            if in_tree is chunk:
                chunk.file, chunk.file_bytes = None, written.file_bytes
        self._works()
        if in_tree is None:
            self._remove([chunk.key])  # it was split, replaced or cleared meanwhile
        return in_tree is chunk

    def _write_halves(self, wide: Record, halves: tuple[Chunk, Chunk]) -> None:
        # A half may have been split again meanwhile: then its own halves have their own turn with ``wide``.
        with self._lock:
            todo = [h for h in halves if h.file is wide and self._holdings.tree.get(h.key) is h]
            blobs = [half.blob for half in todo]
        if any(blob is None for blob in blobs):
            try:
                whole = self._tier.read(wide)
            except (ChunkGone, ChunkDamaged, DiskUnusable) as error:
                self._could_not_read(wide, error)
                return
            blobs = [self._cut_out(whole, wide, half) for half in todo]
        for half, blob in zip(todo, blobs, strict=True):
            assert blob is not None
            self._write_blob(half, blob)
        with self._lock:
            still = any(c.file is wide for c in self._holdings.tree)
        if not still:
            self._remove([wide.key])

    def _cut_out(self, blob: bytes, wide: Record, chunk: Chunk) -> bytes:
        """A chunk's part of the blob of a wider one."""
        if chunk.end < wide.end:
            blob = self._holdings.cut(blob, chunk.end - wide.start)[0]
        if chunk.start > wide.start:
            blob = self._holdings.cut(blob, chunk.start - wide.start)[1]
        return blob

    def remove(self, keys: Sequence[Key]) -> None:
        """Remove files that are of no use, in their turn."""
        self._writer.add(lambda: self._remove(keys))

    def _remove(self, keys: Sequence[Key]) -> None:
        try:
            self._tier.remove(keys)
        except DiskUnusable as error:
            self.fail(str(error))

    # -- reading -----------------------------------------------------------

    def read(self, fetch: Fetch) -> None:
        """Load a chunk's blob into ``fetch`` and, if there is room, into RAM."""
        if self._unreadable and time.monotonic() < self._retry_at:
            fetch.finish(None)
            return
        self._reader.add(lambda: self._read(fetch))

    def _read(self, fetch: Fetch) -> None:
        blob = None
        try:
            if fetch.wanted:
                self._reading_since = time.monotonic()
                blob = self._read_blob(fetch.chunk)
        finally:
            self._reading_since = 0.0
            fetch.finish(blob)
            self._wake()

    @property
    def readable(self) -> bool:
        """Can what lies there be had, as far as is known?"""
        return not self._unreadable

    def stuck(self, seconds: float) -> bool:
        """Has one chunk been read for longer than ``seconds``? If so the disk counts as failed."""
        since = self._reading_since
        if not since or time.monotonic() - since <= seconds:
            return False
        self.fail(f"a chunk was not read within {seconds:g} s", reading=True)
        return True

    def _read_blob(self, chunk: Chunk) -> bytes | None:
        with self._lock:
            if chunk.blob is not None:
                return chunk.blob
            record = chunk.file or self._holdings.record(chunk)
        try:
            blob = self._tier.read(record)
        except (ChunkGone, ChunkDamaged, DiskUnusable) as error:
            self._could_not_read(record, error)
            return None
        blob = self._cut_out(blob, record, chunk)
        if self._unreadable:
            self._works(read=True)
        self._promote(chunk, blob)
        return blob

    def _promote(self, chunk: Chunk, blob: bytes) -> None:
        """What was read from disk is wanted: keep it in RAM too, if there is room."""
        with self._lock:
            if chunk.blob is None and self._holdings.tree.get(chunk.key) is chunk:
                self._holdings.hold(chunk, blob)

    def _could_not_read(self, record: Record, error: Exception) -> None:
        if isinstance(error, DiskUnusable):
            self.fail(str(error), reading=True)
            return
        if isinstance(error, ChunkDamaged):
            self._damaged += 1
        with self._lock:
            known = self._holdings.lose_file(record.key)
        if known or isinstance(error, ChunkDamaged):  # else it was split, replaced or cleared meanwhile
            if record.is_checkpoint:
                logger.warning("the checkpoint at %d tokens can't be used: %s", record.start, error)
            else:
                logger.warning("a chunk of %d tokens is read again: %s", record.n, error)

    # -- the state of the disk ---------------------------------------------

    def fail(self, why: str, *, reading: bool = False) -> None:
        """The disk can't be used for now: not for writing, and if it was ``reading``, not at all."""
        with self._lock:
            if self._failure is None:
                logger.error("the disk cache is off, the server goes on from RAM: %s", why)
            self._failure = why
            self._unreadable |= reading
            self._retry_at = time.monotonic() + _RETRY
            self._holdings.keep_unwritten = False
        self._writer.mark_untidy()  # it will try again

    def _works(self, *, read: bool = False) -> None:
        """Something succeeded: if the disk had failed, what was not written meanwhile is written now."""
        with self._lock:
            if self._failure is None or (self._unreadable and self._reading_since and not read):
                return
            self._failure, self._unreadable = None, False
            self._holdings.keep_unwritten = True
        logger.warning("the disk cache works again")
        for chunk in self._late_chunks():
            self.write(chunk)

    def _late_chunks(self) -> list[Chunk]:
        """What is in RAM and was not written, parents first."""
        with self._lock:
            late = [
                c for c in self._holdings.tree if c.blob is not None and not c.file_bytes and not c.queued
            ]
        return sorted(late, key=lambda c: c.start)

    def waiting(self) -> tuple[int, float]:
        """(bytes, seconds of the oldest) of what waits to be written."""
        with self._lock:
            sizes = [len(chunk.blob) for chunk in self._waiting if chunk.blob is not None]
            oldest = next((chunk.queued for chunk in self._waiting), 0.0)
        return sum(sizes), time.monotonic() - oldest if oldest else 0.0

    def wait_written(self, timeout: float) -> bool:
        """Wait until all that waits is written."""
        return self._writer.wait_idle(timeout)

    def stats(self) -> TierStats:
        """As of the last look at the index, which is now unless the disk keeps us waiting."""
        self.refresh(_PATIENCE)
        totals = self._totals
        return TierStats(
            state="ok" if self._failure is None else f"failed: {self._failure}",
            budget=totals.budget,
            bytes=totals.bytes,
            pinned_bytes=totals.pinned_bytes,
            chunks=totals.chunks,
            tokens=totals.tokens,
            hit_tokens_total=self.hit_tokens,
            evictions_total=self._evictions,
            damaged_total=self._damaged,
            checkpoints=totals.checkpoints,
            checkpoint_bytes=totals.checkpoint_bytes,
        )

    # -- pins, clearing, the end -------------------------------------------

    def pin(self, pin: Pin, chunks: Sequence[Chunk]) -> None:
        """Keep a pin's chunks on disk. Raises PinRefused."""
        self._writer.wait_idle(_PIN_WAIT)
        self._tier.pin(pin)
        with self._lock:
            lacking = [chunk for chunk in chunks if not chunk.file_bytes]
        if not lacking or self._failure is not None:
            return  # they are kept in RAM until the disk is back
        for chunk in lacking:  # evicted, or without room until now; since they are pinned, others have to go
            self.write(chunk)
        if not self._writer.wait_idle(_PIN_WAIT) or all(chunk.file_bytes for chunk in lacking):
            return
        self._tier.unpin(pin.id)
        totals, size = self._tier.totals(), sum(chunk.file_bytes or chunk.size for chunk in chunks)
        raise PinRefused(
            f"the prefix takes {binary(size)} and does not fit on disk beside {binary(totals.pinned_bytes)} that"
            f" are pinned already: the budget is {binary(totals.budget)}"
        )

    def unpin(self, pin_id: str) -> None:
        self._tier.unpin(pin_id)

    def clear(self, namespaces: set[bytes] | None) -> int:
        """Remove the files of these namespaces, or of this model; the bytes they took."""
        try:
            return self._tier.clear(namespaces=namespaces, fingerprint=self._tier.fingerprint)
        except DiskUnusable as error:
            self.fail(str(error))
            return 0

    def close(self, timeout: float) -> None:
        """Write what waits, within ``timeout`` seconds."""
        self._closing = True
        self._writer.mark_untidy()
        for worker in (self._writer, self._reader, self._looker):
            if not worker.close(timeout):
                logger.error(
                    "the disk did not come back in time; what was not written is read again next time"
                )
                return
        self._tier.close()
