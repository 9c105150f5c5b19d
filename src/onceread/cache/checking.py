"""Look at every file of a cache directory, and leave nothing bad behind."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onceread.cache import chunkfile, rebuild
from onceread.cache.contract import Key
from onceread.cache.database import Database, unusable
from onceread.cache.directory import Directory, identity_of
from onceread.cache.errors import ChunkDamaged, ChunkGone
from onceread.cache.index import Index, Row


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: Path
    fingerprint: bytes | None
    key: Key | None
    problem: str


def verify(directory: Directory, database: Database) -> Iterator[Finding]:
    """First what the index knows, then what it does not know."""
    for row in database.look(Index.rows):
        finding = _check(directory, database, row.key, row)
        if finding is not None:
            yield finding
    rowless = False
    for path, key, status in directory.scan():
        if key is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            yield Finding(path, None, None, f"{path}: is not a chunk and was left alone")
        elif database.look(lambda index, key=key: index.row(key)) is None:  # type: ignore[misc]
            finding = _check(directory, database, key, None)
            rowless = rowless or finding is None
            if finding is not None:
                yield finding
    if rowless:
        database.change(lambda index: rebuild.shrink(directory, index))


def _check(directory: Directory, database: Database, key: Key, row: Row | None) -> Finding | None:
    path = directory.file(key)
    fingerprint = row.fingerprint if row is not None else None
    seen = identity_of(path)
    try:
        chunkfile.check(path, fingerprint, row.record if row is not None else None)
    except (ChunkGone, ChunkDamaged) as error:
        told = database.change(lambda index: rebuild.give_up(directory, index, key, seen))
        if told or (row is None and isinstance(error, ChunkDamaged)):
            return Finding(path, fingerprint, key, str(error))
        return None  # another process has evicted it, or written it anew
    except OSError as error:
        raise unusable(directory, error) from error
    if row is None and not database.change(lambda index: rebuild.adopt_rowless(directory, index, key)):
        return Finding(path, None, key, f"{path}: is the file of another chunk")
    return None
