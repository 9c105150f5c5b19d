"""The SQLite file of the stored responses: made with care, shared by processes, and replaced where it is damaged.

    DIR/responses/responses.sqlite

The folder is 0700 and the file 0600. A file that can't be read, or that is not ours, is moved aside and a new one
begun: its responses are gone for whoever asks, and nothing fails because of it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from onceread.cache.directory import plain, try_lock
from onceread.cache.errors import DiskUnusable
from onceread.cache.sqlite import in_transaction, is_damage
from onceread.models.home import expanded

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE = Path("responses") / "responses.sqlite"

_APPLICATION = 0x6F6E7265
_VERSION = 1
_BUSY = 2.0  # seconds to wait for a transaction of another process
_LOCK_WAIT = 5.0
_LOCK_POLL = 0.02
_LOG_PAGES = 256
_BESIDE = ("", "-wal", "-shm", "-journal")

# `used` is in a table of its own, so that a chain can be touched without writing its texts again.
_SCHEMA = f"""
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner BLOB NOT NULL, previous TEXT, created REAL NOT NULL, used REAL NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_use ON responses (used, created DESC);
CREATE INDEX by_owner ON responses (owner);
CREATE TABLE texts (
    id TEXT PRIMARY KEY, response TEXT NOT NULL, turn TEXT NOT NULL,
    response_digest BLOB NOT NULL, turn_digest BLOB NOT NULL
);
CREATE TABLE items (
    owner BLOB NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, id, response)
) WITHOUT ROWID;
CREATE INDEX items_of ON items (response);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER counted AFTER INSERT ON responses BEGIN UPDATE total SET bytes = bytes + new.bytes; END;
CREATE TRIGGER dropped AFTER DELETE ON responses BEGIN
    UPDATE total SET bytes = bytes - old.bytes;
    DELETE FROM texts WHERE id = old.id;
    DELETE FROM items WHERE response = old.id;
END;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""


class ResponsesDatabase:
    """One connection, made at the first use, for any number of threads. What goes wrong is a DiskUnusable."""

    def __init__(self, directory: Path | None) -> None:
        """``directory``: the cache's; None keeps everything in RAM."""
        self._path = None if directory is None else expanded(directory).absolute() / FILE
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction that writes. ``work`` is done once more if the file had to be replaced."""
        return self._transaction("BEGIN IMMEDIATE", work)

    def look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction that reads."""
        return self._transaction("BEGIN", work)

    @property
    def exists(self) -> bool:
        """Is there anything that could be read?"""
        return self._connection is not None or (self._path is not None and self._path.exists())

    def close(self) -> None:
        with self._lock:
            self._close()

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                for first in (True, False):
                    connection = self._open()
                    try:
                        return in_transaction(connection, begin, partial(work, connection))
                    except sqlite3.Error as error:
                        if not first or not is_damage(error):
                            raise
                        self._replace(error)
                raise AssertionError("the second time returns or raises")
            except sqlite3.Error as error:
                raise DiskUnusable(f"the stored responses can't be used: {error}") from error
            except OSError as error:
                raise DiskUnusable(f"the stored responses can't be used: {plain(error)}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and (self._path is None or _identity(self._path) == self._identity):
            return self._connection
        self._close()  # somebody has deleted the file, or moved it aside
        if self._path is None:
            connection = _connect(":memory:")
            connection.executescript(_SCHEMA)
            self._connection = connection
            return connection
        folder = self._path.parent
        _make_folder(folder)
        with _locked(folder):
            complaint = self._attempt()
            if complaint is not None:
                self._move_aside(complaint)
                complaint = self._attempt()
            if complaint is not None or self._connection is None:
                raise DiskUnusable(f"the stored responses can't be used: {self._path} {complaint}")
        return self._connection

    def _attempt(self) -> str | None:
        """Open the file, made if there is none. What is wrong with it, if it can't be used."""
        assert self._path is not None
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        else:
            if not stat.S_ISREG(status.st_mode):
                return "is not a file"
        self._path.chmod(0o600)  # SQLite gives its other files the same mode
        # mode=rw: SQLite is not to make a file, least of all with other permissions.
        connection = _connect(f"file:{quote(os.fsencode(self._path))}?mode=rw")
        try:
            complaint = _complaint(connection)
            if complaint is None:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
                connection.execute(f"PRAGMA journal_size_limit = {_LOG_PAGES * 4096}")
        except sqlite3.Error as error:
            connection.close()
            if not is_damage(error):
                raise
            return f"can't be read: {error}"
        except BaseException:
            connection.close()
            raise
        if complaint is not None:
            connection.close()
            return complaint
        self._connection, self._identity = connection, _identity(self._path)
        return None

    def _replace(self, error: sqlite3.Error) -> None:
        """The open file is damaged. Another process may have found out, and replaced it, before us."""
        if self._path is None:
            self._close()
            return
        with _locked(self._path.parent):
            is_ours = _identity(self._path) == self._identity
            self._close()
            if is_ours:
                self._move_aside(f"is damaged: {error}")

    def _move_aside(self, why: str) -> None:
        assert self._path is not None
        aside = f"{self._path}.moved-{time.time_ns()}"
        log.warning("stored responses: %s %s; it is moved aside, and they are gone", self._path, why)
        for suffix in _BESIDE:
            with suppress(FileNotFoundError):
                os.rename(f"{self._path}{suffix}", f"{aside}{suffix}")  # noqa: PTH104 - names are made by suffixes

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):  # of a file that is damaged
                self._connection.close()
        self._connection = self._identity = None


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name, uri=name != ":memory:", timeout=_BUSY, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be read from free pages
    except BaseException:
        connection.close()
        raise
    return connection


def _complaint(connection: sqlite3.Connection) -> str | None:
    """What is wrong with a file; a new one is filled."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (_APPLICATION, _VERSION):
        return None
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) != (0, 0, 0):
        return "is not a file of this version"
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _make_folder(folder: Path) -> None:
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or os.geteuid() not in (0, status.st_uid):
        raise DiskUnusable(f"{folder} is not a directory of this user")
    folder.chmod(0o700)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process at a time opens the file or moves it aside."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_WAIT
        while not try_lock(fd, without=True):
            if time.monotonic() > end:
                raise DiskUnusable(f"{folder}: another process has been opening it for {_LOCK_WAIT:g} s")
            time.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(fd)
