"""Pins: one JSON file each, which is the truth, and the marks in the index that follow from them."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from onceread.cache.contract import HASH, PINNABLE, TOKEN, Pin, Record
from onceread.cache.errors import PinRefused
from onceread.cache.index import Index, Row
from onceread.cache.names import prefix_name
from onceread.cache.sizes import binary

logger = logging.getLogger(__name__)

FORMAT = 1
_ID = re.compile(r"[0-9a-f]{1,64}")
_MAX_FILE = 64 * 1024 * 1024


def path_of(folder: Path, pin_id: str) -> Path | None:
    """None if that can't be a pin's id. What a client sends never becomes a path that leads elsewhere."""
    return folder / f"{pin_id}.json" if _ID.fullmatch(pin_id) else None


def save(part: Path, path: Path, pin: Pin) -> None:
    """Appears whole, by way of ``part``."""
    content = {
        "format": FORMAT,
        "id": pin.id,
        "name": pin.name,
        "created": pin.created,
        "fingerprint": pin.fingerprint.hex(),
        "namespace": pin.namespace.hex(),
        "root": pin.root.hex(),
        "tokens": list(struct.unpack(f"<{pin.n}i", pin.tokens)),
    }
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, 0o600)
            json.dump(content, file)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class PinFolder:
    """Reads the pins of a directory. A damaged one is as good as none, and said once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told: set[str] = set()

    def read(self) -> list[Pin]:
        """The oldest first."""
        pins = []
        for path in sorted(self.folder.glob("*.json")):
            pin = self._read_one(path)
            if pin is not None:
                pins.append(pin)
        return sorted(pins, key=lambda pin: (pin.created, pin.id))

    def _read_one(self, path: Path) -> Pin | None:
        try:
            return _load(path)
        except FileNotFoundError:
            return None  # another process was faster
        except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            if path.name not in self._told:
                self._told.add(path.name)
                logger.warning("%s is not a pin and is left out: %s", path, error)
            return None


def _load(path: Path) -> Pin:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE:
        raise ValueError("not a regular file of a sensible size")
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, not {FORMAT}")
    if path_of(path.parent, content["id"]) != path:
        raise ValueError("its id is not its name")
    names = [bytes.fromhex(content[what]) for what in ("fingerprint", "namespace", "root")]
    if any(len(name) != HASH for name in names):
        raise ValueError("a name of the wrong length")
    tokens = struct.pack(f"<{len(content['tokens'])}i", *content["tokens"])
    fingerprint, namespace, root = names
    return Pin(
        id=content["id"],
        name=str(content["name"]),
        fingerprint=fingerprint,
        namespace=namespace,
        root=root,
        tokens=tokens,
        created=float(content["created"]),
    )


class _Prefixes:
    """The names of a pin's prefixes, each computed once."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._names: dict[int, bytes] = {0: pin.root}

    def name(self, n: int) -> bytes:
        if n not in self._names:
            self._names[n] = prefix_name(self._pin.root, self._pin.tokens[: n * TOKEN])
        return self._names[n]

    def meet(self, record: Record) -> bool:
        """Do all tokens of a chunk that lie within the pin agree with it, also those before the chunk?

        pin      0 ═══════════════════ n
        chunk            start ──────────── end
        """
        pin = self._pin
        if record.root != pin.root:
            return False
        if record.is_checkpoint:
            return record.start <= pin.n and self.name(record.start) == record.parent
        if record.start >= pin.n:
            return False
        end = min(record.end, pin.n)
        same = record.tokens[: (end - record.start) * TOKEN] == pin.tokens[record.start * TOKEN : end * TOKEN]
        if not same:
            return False
        if record.end <= pin.n:
            return self.name(record.end) == record.name
        return self.name(record.start) == record.parent


def covers(pins: list[Pin], record: Record) -> bool:
    """Does a chunk lie on a pinned path, at least with its beginning?"""
    return any(pin.root == record.root and _Prefixes(pin).meet(record) for pin in pins)


def rows_of(index: Index, pin: Pin) -> dict[int, Row]:
    """What a pin keeps: all chunks that lie in it, one that its end lies in where none ends with it, one checkpoint."""
    prefixes = _Prefixes(pin)
    all_met = [(id_, row) for id_, row in index.on_root(pin.root) if prefixes.meet(row.record)]
    met = [(id_, row) for id_, row in all_met if not row.record.is_checkpoint]
    whole = {id_: row for id_, row in met if row.record.end <= pin.n}
    ends = {row.record.end for row in whole.values()} | {0}
    longer = [(id_, row) for id_, row in met if id_ not in whole]
    if longer and pin.n not in ends:
        # Of several any would do: the one whose beginning is covered, that is pinned already, that was used most.
        id_, row = max(
            longer, key=lambda m: (m[1].record.start in ends, m[1].pinned, m[1].use.hits, m[1].key)
        )
        whole[id_] = row
    deepest = _deepest([(id_, row) for id_, row in all_met if row.record.is_checkpoint], met)
    return whole | deepest


def _deepest(checkpoints: list[tuple[int, Row]], chunks: list[tuple[int, Row]]) -> dict[int, Row]:
    """Of these checkpoints of one path the last one up to whose position the chunks are all there."""
    reached = {0}
    for _, row in sorted(chunks, key=lambda met: met[1].record.start):
        if row.record.start in reached:
            reached.add(row.record.end)
    found = [(id_, row) for id_, row in checkpoints if row.record.start in reached]
    return dict([max(found, key=lambda met: met[1].record.start)]) if found else {}


def mark(index: Index, pins: list[Pin]) -> int:
    """Make the index agree with the pins. The bytes that are pinned then."""
    kept: dict[int, Row] = {}
    for pin in pins:
        kept.update(rows_of(index, pin))
    index.set_pinned(kept, others=True)
    return sum(row.file_bytes for row in kept.values())


def mark_one_more(index: Index, pins: list[Pin], pin: Pin) -> None:
    """Raises PinRefused; the transaction is to be rolled back then."""
    others = [other for other in pins if other.id != pin.id]
    before = mark(index, others)
    after = mark(index, [*others, pin])
    budget = index.state().budget
    if budget is not None and after > PINNABLE * budget:
        raise PinRefused(
            f"the prefix takes {binary(after - before)} on disk beside {binary(before)} that are pinned already,"
            f" and of the budget of {binary(budget)} at most {binary(int(PINNABLE * budget))} can be pinned"
        )


def with_bytes(index: Index, pins: list[Pin]) -> list[Pin]:
    """As they are listed."""
    return [replace(pin, bytes=sum(row.file_bytes for row in rows_of(index, pin).values())) for pin in pins]
