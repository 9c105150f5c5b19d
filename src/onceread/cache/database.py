"""SQLite for several threads and processes: a connection for each thread, one transaction at a time, and repair.

A damaged index is thrown away and built anew, since it can be; one that was deleted while it was open, too. SQLite
itself can't tell that a database it has open was deleted, and would go on writing to nowhere: so the file's identity
is compared before each use. The file is never opened but by SQLite: closing any descriptor of it would drop the
locks that this process holds on it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from onceread.cache.directory import Directory, plain
from onceread.cache.errors import DiskUnusable
from onceread.cache.index import Index
from onceread.cache.sqlite import in_transaction, is_damage

T = TypeVar("T")

_LOG_PAGES = 256  # when the log is as long, it is moved into the database; a busy index needs no more
_BUSY = 2.0  # seconds to wait for a transaction of another process


@dataclass(slots=True)
class _Held:
    """A thread's connection."""

    index: Index
    epoch: int
    thread: threading.Thread
    lock: threading.Lock = field(
        default_factory=threading.Lock
    )  # held while it is used: close() waits for it


class Database:
    """The index of one directory. All that goes wrong comes out as DiskUnusable."""

    def __init__(
        self,
        directory: Directory,
        *,
        lock: threading.RLock,
        fsync: bool,
        prepare: Callable[[Index, str | None], None],
    ) -> None:
        """Changes are made under ``lock``, one at a time; callers take it to do more than one thing.

        ``prepare`` is called in the first transaction, with what was wrong if the index had to be made anew.
        """
        self._directory = directory
        self._synchronous = "NORMAL" if fsync else "OFF"
        self._prepare = prepare
        self._local = threading.local()
        self._all: list[_Held] = []
        self._epoch = 0  # rises with each repair: connections of before are of no use
        self._identity: tuple[int, int] | None = None
        self._closed = False
        self._lock = lock
        with self._plain_errors():
            self._open()

    def change(self, work: Callable[[Index], T]) -> T:
        """One transaction that writes. ``work`` may be called twice: what failed is done once more after a repair."""
        return self._transaction("BEGIN IMMEDIATE", work)

    def look(self, work: Callable[[Index], T]) -> T:
        """One transaction that reads, and waits for nobody."""
        return self._transaction("BEGIN", work)

    def version(self) -> tuple[int, int, int]:
        """Another one if another connection has changed anything since this thread last asked."""
        with self._plain_errors():
            held = self._held()
            with held.lock:
                (version,) = held.index.connection.execute("PRAGMA data_version").fetchone()
            return threading.get_ident(), held.epoch, version

    def close(self) -> None:
        with self._lock:
            self._closed = True
            held, self._all = self._all, []
        for each in held:
            with each.lock:
                each.index.connection.close()

    def _transaction(self, begin: str, work: Callable[[Index], T]) -> T:
        with self._plain_errors():
            for first in (True, False):
                epoch = self._epoch
                try:
                    return self._once(begin, work)
                except sqlite3.Error as error:
                    if not first:
                        raise
                    if "is full" in str(error):
                        self._reuse_log()
                    elif is_damage(error) or not self._is_in_place():
                        self._repair(epoch)
                    else:
                        raise
            raise AssertionError("the second time returns or raises")

    def _reuse_log(self) -> None:
        """On a full disk the log can't grow, but it can begin anew once the database has what is in it."""
        held = self._held()
        with held.lock:
            held.index.connection.execute("PRAGMA wal_checkpoint")

    def _once(self, begin: str, work: Callable[[Index], T]) -> T:
        if begin == "BEGIN":
            return self._run(begin, work)
        with self._lock:
            return self._run(begin, work)

    def _run(self, begin: str, work: Callable[[Index], T]) -> T:
        held = self._held()
        with held.lock:
            if self._closed:
                raise DiskUnusable(f"{self._directory.path}: the store on disk is closed")
            return in_transaction(held.index.connection, begin, partial(work, held.index))

    def _held(self) -> _Held:
        if self._closed:
            raise DiskUnusable(f"{self._directory.path}: the store on disk is closed")
        if not self._is_in_place():
            self._repair(self._epoch)
        epoch = self._epoch
        held: _Held | None = getattr(self._local, "held", None)
        if held is not None and held.epoch == epoch:
            return held
        fresh = _Held(self._connect(), epoch, threading.current_thread())
        with self._lock:
            past = [each for each in self._all if each is held or not each.thread.is_alive()]
            self._all = [each for each in self._all if each not in past] + [fresh]
        for each in past:
            each.index.connection.close()
        self._local.held = fresh
        return fresh

    def _is_in_place(self) -> bool:
        try:
            status = self._directory.index.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _repair(self, epoch: int) -> None:
        with self._lock:
            if epoch == self._epoch and not self._closed:  # else another thread has done it
                self._open()

    def _open(self) -> None:
        self._directory.require()
        with self._directory.lock():
            try:
                self._open_locked()
            except (FileNotFoundError, sqlite3.Error):
                if self._directory.index.exists():
                    raise
                self._open_locked()  # somebody has deleted it just now

    def _open_locked(self) -> None:
        complaint = self._look_at_file()
        if complaint is not None:
            self._remove_files()
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            os.close(os.open(self._directory.index, flags, 0o600))
        self._directory.index.chmod(0o600)  # SQLite gives its other files the same mode
        index = self._connect()

        def prepare(index: Index) -> None:
            if complaint is not None:
                index.create()
            self._prepare(index, complaint)

        try:
            in_transaction(index.connection, "BEGIN IMMEDIATE", partial(prepare, index))
            status = self._directory.index.lstat()
        finally:
            index.connection.close()
        self._identity = status.st_dev, status.st_ino
        self._epoch += 1

    def _look_at_file(self) -> str | None:
        """What is wrong with the index, so that it must be made anew."""
        try:
            status = self._directory.index.lstat()
        except FileNotFoundError:
            return "is missing"
        if stat.S_ISLNK(status.st_mode):
            return "is a symbolic link"
        if not stat.S_ISREG(status.st_mode):
            raise DiskUnusable(f"{self._directory.index} is not a file")
        try:
            index = self._connect()
            try:
                return index.complaint()
            finally:
                index.connection.close()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            return f"can't be read: {error}"

    def _remove_files(self) -> None:
        """Also what SQLite keeps beside it: it would take it for the new one's."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._directory.index}{suffix}").unlink(missing_ok=True)

    def _connect(self) -> Index:
        # mode=rw: SQLite is not to make a file, least of all with other permissions, where one was deleted.
        uri = f"file:{quote(os.fsencode(self._directory.index))}?mode=rw"
        connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_PAGES * 4096}")
        except BaseException:
            connection.close()
            raise
        return Index(connection)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DiskUnusable(f"the index {self._directory.index} can't be used: {error}") from error
        except OSError as error:
            raise unusable(self._directory, error) from error


def unusable(directory: Directory, error: OSError) -> DiskUnusable:
    return DiskUnusable(f"the cache directory {directory.path} can't be used: {plain(error)}")
