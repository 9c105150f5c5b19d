"""Where everything lies in a cache directory, with which permissions, and who may remove what.

    DIR/v1/index.sqlite                             the index; see index.py
    DIR/v1/chunks/<2 hex>/<64 hex>-<start>.chunk    one file a chunk; see chunkfile.py
    DIR/v1/pins/<id>.json                           one file a pin; see pinfiles.py
    DIR/v1/tmp                                      what is being written, and by whom; see owners.py

Directories are 0700 and files 0600 whatever the umask. A directory that was there before is not ours to change;
v1 is, and nobody else may look into it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceread.cache.contract import Key
from onceread.cache.errors import DiskUnusable

_CHUNK_FILE = re.compile(r"([0-9a-f]{64})-(0|[1-9][0-9]{0,9})\.chunk")
_BLOCK = 4096  # bytes: what a file system hands out at least
_LOCK_WAIT = 10.0  # seconds
_LOCK_POLL = 0.02
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS)


class Directory:
    """Paths, and the few operations on files that must be careful."""

    def __init__(self, path: Path) -> None:
        if "\0" in str(path):
            raise DiskUnusable("the path of the cache directory has a zero byte in it")
        self.path = path.absolute()
        self.root = path / "v1"
        self.index = self.root / "index.sqlite"
        self.chunks = self.root / "chunks"
        self.pins = self.root / "pins"
        self.tmp = self.root / "tmp"

    def create(self) -> None:
        """Make what is missing. Raises OSError, DiskUnusable."""
        for folder in reversed((self.path, *self.path.parents)):
            _make(folder)
        for folder in (self.root, self.chunks, self.pins, self.tmp):
            _make(folder)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or os.geteuid() not in (0, status.st_uid):
                raise DiskUnusable(f"{folder} is not a directory of this user")
            folder.chmod(0o700)

    def require(self) -> None:
        """Raises DiskUnusable if there is no cache."""
        if not self.chunks.is_dir():
            raise DiskUnusable(f"{self.path} is not a cache directory: {self.chunks} is missing")

    def file(self, key: Key) -> Path:
        name = key.name.hex()
        return self.chunks / name[:2] / f"{name}-{key.start}.chunk"

    def scan(self) -> Iterator[tuple[Path, Key | None, os.stat_result]]:
        """All that lies in chunks/, with the key that its name says, or None if it is not a chunk's name."""
        for folder in _entries(self.chunks):
            if not folder.is_dir(follow_symlinks=False):
                yield Path(folder.path), None, folder.stat(follow_symlinks=False)
                continue
            for entry in _entries(Path(folder.path)):
                match = _CHUNK_FILE.fullmatch(entry.name)
                key = Key(bytes.fromhex(match[1]), int(match[2])) if match else None
                if match and match[1][:2] != folder.name:
                    key = None
                try:
                    yield Path(entry.path), key, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue

    def place(self, part: Path, key: Key) -> None:
        """Give a finished file its name. What is no file and stands in its place is moved aside, not removed."""
        path = self.file(key)
        try:
            status = path.lstat()
        except FileNotFoundError:
            _make(path.parent)
        else:
            if not _may_remove(status):
                path.rename(path.with_name(f"{path.name}.moved-{time.time_ns()}"))
        part.replace(path)

    def remove(self, key: Key) -> None:
        """Unlink a chunk's file, or the link in its place. A directory or anything else is left alone."""
        path = self.file(key)
        try:
            if _may_remove(path.lstat()):
                path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            pass

    def has_file(self, key: Key) -> bool:
        try:
            status = self.file(key).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size > 0

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process at a time opens, rebuilds or tidies. Raises DiskUnusable if another one hangs in it."""
        fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = time.monotonic() + _LOCK_WAIT
            while not try_lock(fd, without=True):
                if time.monotonic() > end:
                    raise DiskUnusable(
                        f"{self.root}: another process has been opening it for {_LOCK_WAIT:g} s"
                    )
                time.sleep(_LOCK_POLL)
            yield
        finally:
            os.close(fd)


def try_lock(fd: int, *, without: bool) -> bool:
    """Take the lock of an open file if nobody has it. ``without`` is the answer of a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in _NO_LOCKS:
            return without
        raise
    return True


def rounded(size: int) -> int:
    """What a file of this many bytes takes on a disk, before it is there."""
    return -(-size // _BLOCK) * _BLOCK


def on_disk(status: os.stat_result) -> int:
    """What a file takes on the disk. File systems that place data late say next to nothing for some seconds."""
    size = status.st_blocks * 512
    return size if size >= status.st_size // 2 and size > 0 else rounded(status.st_size)


def identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns


def identity_of(path: Path) -> tuple[int, int, int] | None:
    try:
        return identity(path.lstat())
    except OSError:
        return None


def plain(error: OSError) -> str:
    """An error of the system as one line of English."""
    where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes | Path) else ""
    return f"{error.strerror or error}{where}"


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if folder.is_dir():
            return  # another process was faster
        raise DiskUnusable(f"{folder} is not a directory") from None
    folder.chmod(0o700)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _may_remove(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
