"""Who is writing into a cache directory, so that what a dead process left behind can be told from work in progress.

Each process that writes holds a lock on a file of its own in tmp/, and its unfinished files bear its id. The system
lets go of the lock when the process dies, however it dies. A process id would not do: it is used again, and processes
in two containers don't see each other's.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from pathlib import Path

from onceread.cache.directory import try_lock

_FILE = re.compile(r"([0-9]+-[0-9a-f]{16})\.(?:lock|[0-9]+\.part)")


class Owner:
    """This process, as far as one directory is concerned."""

    def __init__(self, tmp: Path) -> None:
        """Claim an id. To be called under the directory's lock, or a sweep might take it for a dead one's."""
        self.id = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._tmp = tmp
        self._lock = tmp / f"{self.id}.lock"
        self._numbers = itertools.count(1)
        self._fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(self._fd, 0o600)
        try_lock(self._fd, without=True)

    def part(self) -> Path:
        """A new name for an unfinished file."""
        return self._tmp / f"{self.id}.{next(self._numbers)}.part"

    def release(self) -> None:
        if self._fd >= 0:
            self._lock.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def remove_part(tmp: Path, part_id: str) -> None:
    """An unfinished file; its id is its name without the ending."""
    (tmp / f"{part_id}.part").unlink(missing_ok=True)


def is_alive(tmp: Path, owner: str) -> bool:
    try:
        fd = os.open(tmp / f"{owner}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # can't tell; what it holds stays until somebody can
    try:
        return not try_lock(fd, without=False)
    finally:
        os.close(fd)


def sweep(tmp: Path, own: str | None) -> None:
    """Remove what dead processes left in tmp/."""
    alive: dict[str, bool] = {own: True} if own is not None else {}
    for path in sorted(tmp.glob("*")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        owner = match[1]
        if owner not in alive:
            alive[owner] = is_alive(tmp, owner)
        if not alive[owner]:
            path.unlink(missing_ok=True)
