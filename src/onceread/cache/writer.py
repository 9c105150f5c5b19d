"""Writing a chunk to disk: take a place under the budget, write the file, give it its name and its row."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onceread.cache import chunkfile, pinfiles, rebuild
from onceread.cache.contract import CHECKPOINTS, Key, Pin, Record, Use
from onceread.cache.database import Database, unusable
from onceread.cache.directory import Directory, on_disk, rounded
from onceread.cache.errors import DiskUnusable
from onceread.cache.index import Index, Reservation, Victim
from onceread.cache.owners import Owner
from onceread.cache.watch import Watch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """A chunk that lies on disk now, and what had to go for it."""

    file_bytes: int
    evicted: list[tuple[bytes, Key]]  # with the model's fingerprint


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of ``write`` is about."""

    record: Record
    use: Use
    pinned: bool
    size: int  # what the file will take
    part: Path  # its name until it is whole
    place: Reservation


class Writer:
    """Writes for one process and one model."""

    def __init__(
        self,
        directory: Directory,
        database: Database,
        lock: threading.RLock,
        owner: Owner,
        *,
        fingerprint: bytes,
        label: str,
        fsync: bool,
        pins: pinfiles.PinFolder,
        watch: Watch,
    ) -> None:
        self._directory = directory
        self._database = database
        self._lock = lock
        self._owner = owner
        self._fingerprint = fingerprint
        self._label = label
        self._fsync = fsync
        self._pins = pins
        self._pins_read: tuple[tuple[str, int], list[Pin]] = ("", -1), []
        self._watch = watch
        self.evictions = 0
        self._active: set[str] = set()  # reservations of writes that are going on

    def write(self, record: Record, blob: chunkfile.Blob, use: Use, *, pinned: bool) -> Written:
        view = memoryview(blob).cast("B")
        head = chunkfile.pack_head(self._fingerprint, record, len(view), self._label)
        size = rounded(len(head) + len(view) + chunkfile.SUM)
        part = self._owner.part()
        work = Work(record, use, pinned, size, part, Reservation(part.stem, self._owner.id, record.key))
        there, evicted = self._reserve(work)
        if there is not None:
            return Written(there, [])
        try:
            chunkfile.write(part, head, view, fsync=self._fsync)
            file_bytes, more = self._publish(work)
        except BaseException as error:
            self._abandon(work, evicted)
            if isinstance(error, OSError):
                raise unusable(self._directory, error) from error
            raise
        return Written(file_bytes, [(victim.fingerprint, victim.key) for victim in evicted + more])

    def _reserve(self, work: Work) -> tuple[int | None, list[Victim]]:
        """What the file takes if it is there already; else who went to make room."""
        record = work.record

        def reserve(index: Index) -> tuple[int | None, list[Victim]]:
            there = index.row(record.key)
            if there is not None and self._directory.has_file(record.key):
                if work.pinned and not there.pinned:
                    index.set_pinned_key(record.key)
                return there.file_bytes, []
            if there is not None:
                index.delete([record.key])
            self._give_back_forgotten(index)
            victims = self._make_room(index, work.size, record)
            index.reserve(work.place, record.parent, work.size, checkpoint=record.is_checkpoint)
            return None, victims

        with self._lock:
            there, victims = self._database.change(reserve)
            if there is None:
                self._active.add(work.place.id)
            else:
                self._watch.add(record.key)
            self._count(victims)
        return there, victims

    def _publish(self, work: Work) -> tuple[int, list[Victim]]:
        record = work.record
        named = False

        def publish(index: Index) -> tuple[int, list[Victim]]:
            nonlocal named
            file_bytes = on_disk((self._directory.file(record.key) if named else work.part).lstat())
            index.unreserve([work.place.id])
            index.forget(record.key)
            victims = self._make_room(index, file_bytes, record)  # it may be larger than was thought
            if not named:
                self._directory.place(work.part, record.key)
                named = True
            index.insert(self._fingerprint, record, work.use, file_bytes, pinned=work.pinned)
            index.use_model(self._fingerprint, self._label, time.time())
            self._keep_if_pinned(index, record)
            return file_bytes, victims

        with self._lock:
            try:
                file_bytes, victims = self._database.change(publish)
            except BaseException:
                if named:
                    with suppress(OSError):
                        self._directory.remove(record.key)
                raise
            self._active.discard(work.place.id)
            self._count(victims)
            self._watch.add(record.key)
        return file_bytes, victims

    def _count(self, victims: list[Victim]) -> None:
        self.evictions += len(victims)
        self._watch.discard(victim.key for victim in victims)

    def _keep_if_pinned(self, index: Index, record: Record) -> None:
        """A pin that another process has set, and the caller may not know of yet, holds for a new chunk, too."""
        state = index.state()
        if (state.generation, state.pins) != self._pins_read[0]:
            self._pins_read = (state.generation, state.pins), self._pins.read()
        pins = [pin for pin in self._pins_read[1] if pin.root == record.root]
        if not pinfiles.covers(pins, record):
            return
        if record.is_checkpoint:  # where it is the deepest now, it takes another one's place
            pinfiles.mark(index, self._pins_read[1])
        else:
            index.set_pinned([id_ for pin in pins for id_ in pinfiles.rows_of(index, pin)], others=False)

    def _make_room(self, index: Index, size: int, record: Record) -> list[Victim]:
        budget = index.state().budget
        if budget is not None and (
            index.total() + size > budget
            or (record.is_checkpoint and index.checkpoint_total() + size > budget * CHECKPOINTS)
        ):
            rebuild.reap(self._directory, index, self._owner.id)
        victims = index.make_room(size, record)
        for victim in victims:
            self._directory.remove(victim.key)  # before the commit: who dies here leaves rows, not files
        return victims

    def _abandon(self, work: Work, evicted: list[Victim]) -> None:
        with suppress(OSError):
            work.part.unlink(missing_ok=True)
        with self._lock:
            self._active.discard(work.place.id)
            self._watch.tell_later(v.key for v in evicted if v.fingerprint == self._fingerprint)
            try:
                self._database.change(self._give_back_forgotten)
            except DiskUnusable as error:
                logger.debug("the next write gives back what this one reserved: %s", error)

    def _give_back_forgotten(self, index: Index) -> None:
        mine = [r.id for r in index.reservations() if r.owner == self._owner.id]
        index.unreserve([id_ for id_ in mine if id_ not in self._active])
