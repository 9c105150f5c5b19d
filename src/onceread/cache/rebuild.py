"""Make index and files agree: when a directory is opened, and where a process died in the middle of its work."""

from __future__ import annotations

import logging
import stat
import time

from onceread.cache import chunkfile, owners, pinfiles
from onceread.cache.contract import Key, Use
from onceread.cache.directory import Directory, identity_of, on_disk
from onceread.cache.errors import ChunkDamaged, ChunkGone
from onceread.cache.index import Index
from onceread.cache.sizes import binary
from onceread.cache.value import value

logger = logging.getLogger(__name__)


def reconcile(directory: Directory, index: Index, pins: pinfiles.PinFolder, own: str | None) -> None:
    """Files without a row get one, rows without a file go. In one transaction: nobody else moves a file meanwhile."""
    reap(directory, index, own)
    owners.sweep(directory.tmp, own)
    rows = dict(index.keys())
    adopted = damaged = 0
    for path, key, status in directory.scan():
        if key is None or not stat.S_ISREG(status.st_mode):
            continue
        if key in rows:
            if on_disk(status) != rows[key]:
                index.set_size(key, on_disk(status))
            del rows[key]
        elif adopt(directory, index, key):
            adopted += 1
        else:
            damaged += 1
            logger.debug("%s was removed", path)
    index.delete(rows)
    if adopted or damaged or rows:
        logger.info(
            "the store in %s: %d chunks found that the index did not know, %d damaged ones removed, %d are gone",
            directory.path, adopted, damaged, len(rows),
        )  # fmt: skip
    pinfiles.mark(index, pins.read())


def adopt(directory: Directory, index: Index, key: Key) -> bool:
    """Give a file that has no row one, from what it says itself; False, and it is removed, if it can't be believed."""
    path = directory.file(key)
    try:
        head = chunkfile.read_head(path)
        status = path.lstat()
    except ChunkGone:
        return False
    except ChunkDamaged as error:
        logger.warning("a chunk was removed: %s", error)
        directory.remove(key)
        return False
    if head.record.key != key:
        logger.warning("a chunk was removed: %s: is the file of another one", path)
        directory.remove(key)
        return False
    index.add_model(head.fingerprint, head.label, status.st_mtime)
    record = head.record
    worth = value(1, *record.saved, on_disk(status))
    use = Use(hits=1, last_used=status.st_mtime, value=worth)
    index.insert(head.fingerprint, head.record, use, on_disk(status), pinned=False)
    return True


def reap(directory: Directory, index: Index, own: str | None) -> None:
    """Free what dead processes had reserved. One may have died between giving its file a name and saying so."""
    alive: dict[str, bool] = {}
    for reservation in index.reservations():
        owner = reservation.owner
        if owner == own:
            continue
        if owner not in alive:
            alive[owner] = owners.is_alive(directory.tmp, owner)
        if not alive[owner]:
            index.unreserve([reservation.id])
            owners.remove_part(directory.tmp, reservation.id)
            adopt_rowless(directory, index, reservation.key)


def adopt_rowless(directory: Directory, index: Index, key: Key) -> bool:
    """Give a file a row if it has none. False if there was one that can't be believed."""
    return index.row(key) is not None or not directory.has_file(key) or adopt(directory, index, key)


def give_up(directory: Directory, index: Index, key: Key, seen: tuple[int, int, int] | None) -> bool:
    """Remove what was found bad, file and row, unless somebody has put a new file there since. Was there a row?"""
    if identity_of(directory.file(key)) != seen:
        return False
    directory.remove(key)
    return bool(index.delete([key]))


def shrink(directory: Directory, index: Index) -> int:
    """Evict what is over the budget. How many chunks went."""
    victims, _ = index.evict_checkpoints()
    others, missing = index.evict()
    victims += others
    for victim in victims:
        directory.remove(victim.key)
    if missing:
        logger.warning(
            "the store in %s takes %s more than its budget of %s, and all that is left is pinned",
            directory.path, binary(missing), binary(index.state().budget or 0),
        )  # fmt: skip
    return len(victims)


def tell_rebuilt(directory: Directory, index: Index, complaint: str, began: float) -> None:
    totals = index.totals(None, 0)
    if totals.chunks:
        logger.warning(
            "the index %s %s; it was built anew from the files in %.1f s: %d chunks, %s",
            directory.index, complaint, time.monotonic() - began, totals.chunks, binary(totals.bytes),
        )  # fmt: skip
