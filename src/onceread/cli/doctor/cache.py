"""The cache directory: can it be written, is there room, what is it on, and is what lies in it sound?"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from onceread.cache import chunkfile
from onceread.cache.directory import Directory
from onceread.cache.errors import CacheError, ChunkDamaged, ChunkGone
from onceread.cli.doctor.finding import Finding, bad, ok, warn
from onceread.cli.errors import CommandError, one_line
from onceread.cli.model_file import gib, short
from onceread.engine.defaults import default_disk_budget
from onceread.models.home import expanded
from onceread.server.setting_values import MIN_CACHE_DISK

_ANOTHER = "give another directory by --cache-dir, or leave it out by --no-disk-cache"
_IN_MEMORY = {"tmpfs", "ramfs"}
_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "afs",
    "ceph",
    "glusterfs",
    "fuse.rclone",
}
_CHECKED_FILES = 200
_CHECKED_SECONDS = 2.0


def directory(folder: Path, *, wanted: bool = True, budget: int | None = None) -> list[Finding]:
    """All findings on one cache directory; what rests on a broken thing is left out."""
    if not wanted:
        return [ok("cache", "on disk it is switched off (no_disk_cache)")]
    folder = expanded(folder)
    first = writable(folder)
    found = [first, file_system(folder)]
    if first.state == "bad":
        return found
    found.append(room(folder, budget))
    if Directory(folder).chunks.is_dir():
        index = index_sound(folder)
        found.append(index)
        found.append(files_sound(folder))
        if index.state == "ok":
            found.append(use(folder))
    return found


def writable(folder: Path) -> Finding:
    """By writing into it, or where it would be made: permission bits tell only half of it."""
    there = _nearest(folder)
    if not there.is_dir():
        return bad("cache", f"{there} is not a folder", _ANOTHER, directory=str(folder))
    root = folder / "v1"
    where = root if root.is_dir() else there
    try:
        with tempfile.TemporaryFile(dir=where) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        return bad("cache", f"{where} can't be written: {error.strerror}", _ANOTHER, directory=str(folder))
    if root.is_dir() and root.stat().st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        return bad("cache", f"{root} belongs to another user", _ANOTHER, directory=str(folder))
    state = "is made at the first start" if there != folder else "can be written"
    return ok("cache", f"{short(folder)} {state}", directory=str(folder))


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> Finding:
    """What it lies on: RAM does not survive a restart, and networks are slow."""
    kind = kind_of(_nearest(folder).resolve(), mounts)
    if kind in _IN_MEMORY:
        return warn(
            "cache's file system",
            f"{kind}: it is memory, takes what models need, and is empty after a restart",
            "put it on a disk by --cache-dir, or leave it out by --no-disk-cache",
            type=kind,
        )
    if kind in _NETWORK:
        return warn(
            "cache's file system",
            f"{kind}: a network's, slow, and locks may not work",
            "put it on a local disk by --cache-dir",
            type=kind,
        )
    return ok("cache's file system", kind or "not known here", type=kind)


def kind_of(path: Path, mounts: Path) -> str | None:
    """The type of the file system that a path lies on, or None where the kernel does not list them."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = Path(parts[1].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= best:  # the later mount covers the earlier
            best, kind = len(point.parts), parts[2]
    return kind


def room(folder: Path, budget: int | None = None) -> Finding:
    """Free space against what the cache may take."""
    free = shutil.disk_usage(_nearest(folder)).free
    if budget is None:
        budget = default_disk_budget(folder)
    data = {"free_bytes": free, "budget_bytes": budget}
    if free < MIN_CACHE_DISK:
        return bad(
            "cache's disk",
            f"{gib(free)} are free, and the cache takes at least {gib(MIN_CACHE_DISK)}",
            f"make room, or {_ANOTHER}",
            **data,
        )
    if budget > free + _size(folder):
        return warn(
            "cache's disk",
            f"{gib(free)} are free, and the cache may take {gib(budget)}",
            "give a smaller --cache-disk",
            **data,
        )
    return ok("cache's disk", f"{gib(free)} are free; the cache may take {gib(budget)}", **data)


def index_sound(folder: Path) -> Finding:
    """SQLite's own check, without changing anything: a start would repair it, and nobody would know why."""
    file = Directory(folder.absolute()).index
    if not file.exists():
        return ok("cache's index", "not there; the next start makes it from the files")
    try:
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=5)
        try:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            connection.execute("SELECT count(*) FROM chunks").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            return ok("cache's index", "in use by another process just now; not checked")
        said = str(error)
    except sqlite3.DatabaseError as error:
        said = str(error)
    if said != "ok":
        return bad(
            "cache's index",
            f"damaged: {' '.join(str(said).split())}",
            "the next start makes it anew from the files, and so does onceread cache verify; if it happens "
            "again, check the disk",
        )
    return ok("cache's index", "sound")


def files_sound(folder: Path) -> Finding:
    """A sample of the files, read in full and held against their checksums. Nothing is removed."""
    checked, damaged = 0, []
    until = time.monotonic() + _CHECKED_SECONDS
    for path in _newest(Directory(folder)):
        if checked >= _CHECKED_FILES or time.monotonic() > until:
            break
        try:
            chunkfile.check(path, None, None)
        except ChunkGone:
            continue  # evicted meanwhile
        except ChunkDamaged as error:
            damaged.append(str(error))
        except OSError as error:
            damaged.append(f"{path}: {error.strerror}")
        checked += 1
    data = {"checked": checked, "damaged": len(damaged)}
    if damaged:
        return bad(
            "cache's files",
            f"{len(damaged)} of {checked} that were read are damaged: {damaged[0]}",
            "onceread cache verify removes them; they are read again, nothing is lost. Then check the disk",
            **data,
        )
    return ok("cache's files", f"{checked} were read and are sound; onceread cache verify reads all", **data)


def use(folder: Path) -> Finding:
    """What lies there, against its budget."""
    from onceread.cli.cache_directory import DirectoryCache

    try:
        with DirectoryCache(folder) as cache:
            totals = cache.use()
    except (CommandError, CacheError) as error:
        return bad("cache's use", one_line(error), _ANOTHER)
    data = {"bytes": totals.bytes, "budget_bytes": totals.budget_bytes, "pinned_bytes": totals.pinned_bytes}
    text = f"{gib(totals.bytes)} of {gib(totals.budget_bytes)} used, {totals.tokens:,} tokens"
    if totals.budget_bytes and totals.pinned_bytes > totals.budget_bytes * 0.8:
        return warn(
            "cache's use",
            f"{text}; {gib(totals.pinned_bytes)} are pinned and leave little room for the rest",
            "unpin what is no longer needed (onceread cache pins), or give a larger --cache-disk",
            **data,
        )
    return ok("cache's use", text, **data)


def _newest(place: Directory) -> Iterator[Path]:
    found = [(status.st_mtime_ns, path) for path, key, status in place.scan() if key is not None]
    yield from (path for _, path in sorted(found, reverse=True))


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _size(folder: Path) -> int:
    return sum(status.st_blocks * 512 for _, _, status in Directory(folder).scan())
