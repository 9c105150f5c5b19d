"""The disk tier: chunks as files under one budget, shared by all processes that use the directory.

    write   take a place (evict first) → file in tmp/ → in one transaction: rename, row, place given back
    read    the file alone, checked in full; the index is asked only when something is wrong with it

Files get and lose their names only inside a transaction of the index, so whoever holds one sees both agree, but for
what a process left that was killed: rebuild.py takes care of that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from onceread.cache import checking, chunkfile, pinfiles, rebuild
from onceread.cache.checking import Finding
from onceread.cache.contract import Key, Pin, Record, Use
from onceread.cache.database import Database, unusable
from onceread.cache.directory import Directory, identity_of
from onceread.cache.errors import ChunkDamaged, ChunkGone, DiskUnusable
from onceread.cache.index import Index, KnownModel, Row, Totals, Victim
from onceread.cache.owners import Owner
from onceread.cache.watch import Changes, Watch
from onceread.cache.writer import Writer, Written

__all__ = ["Changes", "DiskTier", "Finding", "KnownModel", "Row", "Totals", "Written"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DiskTier:
    """Chunks in a directory, as one model sees them. Thread-safe, and every call may wait for the disk.

    Any call may raise DiskUnusable; nothing is half done then.
    """

    def __init__(
        self, directory: Path, budget: int, fingerprint: bytes, label: str, *, fsync: bool = False
    ) -> None:
        """Make the directory if it is not there. Its budget is one: that of whoever opened it last."""
        self._begin(Directory(directory), fingerprint, label, budget)
        try:
            self._directory.create()
            owner = self._claim()
            self._open(fsync)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise unusable(self._directory, error) from error
            raise
        self._writer: Writer | None = Writer(
            self._directory,
            self._database,
            self._lock,
            owner,
            fingerprint=fingerprint,
            label=label,
            fsync=fsync,
            pins=self._pins,
            watch=self._watch,
        )

    @classmethod
    def admin(cls, directory: Path) -> DiskTier:
        """Look at a directory, and tidy it, with no model: not to read or write chunks. Makes no directory."""
        tier = cls.__new__(cls)
        tier._begin(Directory(directory), None, "", None)
        tier._open(fsync=False)
        tier._writer = None
        return tier

    def _begin(self, directory: Directory, fingerprint: bytes | None, label: str, budget: int | None) -> None:
        self.fingerprint = fingerprint
        self.label = label
        self._budget = budget
        self._directory = directory
        self._pins = pinfiles.PinFolder(directory.pins)
        self._lock = threading.RLock()
        self._owner: Owner | None = None
        self._evictions = 0
        self._watch = Watch(fingerprint)
        self._asked = threading.local()

    def _open(self, fsync: bool) -> None:
        self._database = Database(self._directory, lock=self._lock, fsync=fsync, prepare=self._prepare)
        self._database.look(self._watch.mark)

    def _prepare(self, index: Index, complaint: str | None) -> None:
        began = time.monotonic()
        if self._budget is not None:
            index.set_budget(self._budget)
        own = self._owner.id if self._owner is not None else None
        rebuild.reconcile(self._directory, index, self._pins, own)
        if self.fingerprint is not None:
            index.use_model(self.fingerprint, self.label, time.time())
        if complaint is not None:
            rebuild.tell_rebuilt(self._directory, index, complaint, began)
        self._evictions += rebuild.shrink(self._directory, index)

    def close(self) -> None:
        self._database.close()
        self._release()

    def _claim(self) -> Owner:
        """Never in a transaction: whoever opens the directory waits for those with the directory's lock in hand."""
        with self._lock:
            if self._owner is None:
                with self._directory.lock():
                    self._owner = Owner(self._directory.tmp)
            return self._owner

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.release()

    # -- what is there

    def rows(self) -> list[Row]:
        """Every chunk of this model, the oldest first. ``refresh`` tells what others do from here on."""
        with self._lock:
            return self._database.look(self._watch.begin)

    def all_rows(self) -> list[Row]:
        """Every chunk of every model."""
        return self._database.look(lambda index: index.rows())

    def models(self) -> list[KnownModel]:
        """The models that the directory has seen, the last used first."""
        return self._database.look(Index.models)

    def totals(self, fingerprint: bytes | None = None) -> Totals:
        """Of all models, or of one."""
        evictions = self._evictions + (self._writer.evictions if self._writer is not None else 0)
        return self._database.look(lambda index: index.totals(fingerprint, evictions))

    def refresh(self) -> Changes:
        """What other processes have added and removed since the last call, or since ``rows``."""
        version = self._database.version()
        if version == getattr(self._asked, "version", None) and not self._watch.has_untold:
            return Changes([], [], False)
        with self._lock:  # so that a write of another thread is known by the time it is seen
            changes = self._database.look(self._watch.compare)
        self._asked.version = version
        return changes

    # -- chunks

    def write(self, record: Record, blob: chunkfile.Blob, use: Use, *, pinned: bool = False) -> Written:
        """Put a chunk on disk. Raises NoRoom. What fails leaves nothing behind."""
        assert self._writer is not None, "a directory that was opened to look at it"
        return self._writer.write(record, blob, use, pinned=pinned)

    def read(self, record: Record) -> bytes:
        """The blob, checked. Raises ChunkGone, ChunkDamaged; the chunk is given up then."""
        assert self.fingerprint is not None, "a directory that was opened to look at it"
        path = self._directory.file(record.key)
        seen = identity_of(path)
        try:
            return chunkfile.read(path, self.fingerprint, record)
        except (ChunkGone, ChunkDamaged):
            self._give_up(record.key, seen)
            raise
        except OSError as error:
            raise unusable(self._directory, error) from error

    def _give_up(self, key: Key, seen: tuple[int, int, int] | None) -> None:
        try:
            with self._lock:
                self._database.change(lambda index: rebuild.give_up(self._directory, index, key, seen))
                self._watch.discard([key])
        except DiskUnusable as error:
            logger.debug("what can't be read stays where it is: %s", error)

    def remove(self, keys: Iterable[Key]) -> None:
        """Files and rows."""
        wanted = list(keys)

        def work(index: Index) -> None:
            for key in wanted:
                self._directory.remove(key)
            index.delete(wanted)

        with self._lock:
            self._database.change(work)
            self._watch.discard(wanted)

    def touch(self, uses: Sequence[tuple[Key, Use]]) -> None:
        """They were used: their worth counts from now."""

        def work(index: Index) -> None:
            index.touch(uses)
            if self.fingerprint is not None:
                index.use_model(self.fingerprint, self.label, time.time())

        self._database.change(work)

    def devalue(self, keys: Sequence[Key]) -> None:
        """These are worth nothing by themselves, though the index was built anew and thinks otherwise."""
        self._database.change(lambda index: index.devalue(keys))

    # -- pins

    def pins(self) -> list[Pin]:
        """Of all models, with the bytes that they keep on disk."""
        return self._database.look(lambda index: pinfiles.with_bytes(index, self._pins.read()))

    def pin(self, pin: Pin) -> None:
        """Keep a prefix. What is not on disk yet is kept when it comes. Raises PinRefused."""
        path = pinfiles.path_of(self._directory.pins, pin.id)
        assert path is not None, "an id is hex digits"
        try:
            part = self._claim().part()
        except OSError as error:
            raise unusable(self._directory, error) from error

        def work(index: Index) -> None:
            pinfiles.mark_one_more(index, self._pins.read(), pin)
            pinfiles.save(part, path, pin)
            index.count_pin_change()

        self._change_pins(work)

    def unpin(self, pin_id: str) -> bool:
        """False if there is no such pin."""
        path = pinfiles.path_of(self._directory.pins, pin_id)

        def work(index: Index) -> bool:
            if path is None or not os.path.lexists(path):
                return False
            path.unlink(missing_ok=True)
            pinfiles.mark(index, self._pins.read())
            index.count_pin_change()
            return True

        return self._change_pins(work)

    def _change_pins(self, work: Callable[[Index], T]) -> T:
        """Others' changes of pins since the last refresh stay to be told, and this one is not."""

        def tracked(index: Index) -> tuple[T, bool, int]:
            nobody_else = self._watch.knows_pins(index)
            return work(index), nobody_else, index.state().pins

        with self._lock:
            result, nobody_else, count = self._database.change(tracked)
            if nobody_else:
                self._watch.set_pins(count)
        return result

    # -- tidying

    def clear(self, *, namespaces: Collection[bytes] | None = None, fingerprint: bytes | None = None) -> int:
        """Remove chunks and their pins: all, of these namespaces, of one model. The bytes that they took."""

        def falls(owner: bytes, namespace: bytes) -> bool:
            return fingerprint in (None, owner) and (namespaces is None or namespace in namespaces)

        def work(index: Index) -> list[Victim]:
            keys = [row.key for row in index.rows() if falls(row.fingerprint, row.record.namespace)]
            for key in keys:
                self._directory.remove(key)
            pins = self._pins.read()
            for pin in pins:
                path = pinfiles.path_of(self._directory.pins, pin.id)
                if falls(pin.fingerprint, pin.namespace) and path is not None:
                    path.unlink(missing_ok=True)
                    index.count_pin_change()
            gone = index.delete(keys)
            pinfiles.mark(index, [pin for pin in pins if not falls(pin.fingerprint, pin.namespace)])
            index.forget_unused_models(self.fingerprint)
            return gone

        with self._lock:
            gone = self._change_pins(work)
            self._watch.discard(victim.key for victim in gone)
        return sum(victim.file_bytes for victim in gone)

    def verify(self) -> Iterator[Finding]:
        """Read every file in full. What is bad is removed and told; what is not ours is told and left."""
        return checking.verify(self._directory, self._database)
