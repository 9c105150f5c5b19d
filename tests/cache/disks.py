"""Chunks for tests of the disk tier: a blob is any bytes, made from the chunk's name, so that a mix-up shows."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterable
from pathlib import Path

from onceread.cache.contract import Key, Pin, Record, Use
from onceread.cache.disk import DiskTier, Row
from onceread.cache.names import namespace_id, prefix_name, root_name

FINGERPRINT = bytes(range(32))
OTHER = bytes(range(1, 33))
PLENTY = 1 << 30
BLOCK = 4096
ONCE = Use(hits=1, last_used=1_700_000_000.0, value=1.0)


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def record(
    path: bytes, start: int, end: int, *, fingerprint: bytes = FINGERPRINT, namespace: str = "n"
) -> Record:
    """The chunk [start, end) of a path of packed tokens."""
    space = namespace_id(namespace)
    root = root_name(fingerprint, space)
    tokens = path[start * 4 : end * 4]
    parent = prefix_name(root, path[: start * 4]) if start else root
    spelled = [f" {token}".encode() for (token,) in struct.iter_unpack("<i", tokens)]
    lengths = struct.pack(f"<{len(spelled)}H", *map(len, spelled))
    name = prefix_name(root, path[: end * 4])
    return Record(root, space, name, parent, start, tokens, b"".join(spelled), lengths)


def chain(
    *tokens: int, cuts: list[int], fingerprint: bytes = FINGERPRINT, namespace: str = "n"
) -> list[Record]:
    """A path cut into chunks: ``cuts`` are where they end."""
    path = packed(*tokens)
    starts = [0, *cuts[:-1]]
    return [
        record(path, start, end, fingerprint=fingerprint, namespace=namespace)
        for start, end in zip(starts, cuts, strict=True)
    ]


def single(token: int, *, fingerprint: bytes = FINGERPRINT, namespace: str = "n") -> Record:
    """A chunk of one token."""
    return record(packed(token), 0, 1, fingerprint=fingerprint, namespace=namespace)


def blob_of(chunk: Record, size: int = 3000) -> bytes:
    return random.Random(hashlib.sha256(chunk.name + packed(chunk.start)).digest()).randbytes(size)


def put(tier: DiskTier, chunk: Record, value: float = 1.0, *, size: int = 3000, pinned: bool = False):
    return tier.write(chunk, blob_of(chunk, size), Use(1, ONCE.last_used, value), pinned=pinned)


def open_tier(directory: Path, budget: int = PLENTY, fingerprint: bytes = FINGERPRINT) -> DiskTier:
    return DiskTier(directory, budget, fingerprint, "a model")


def keys(rows: Iterable[Row]) -> set[Key]:
    return {row.key for row in rows}


def file_of(directory: Path, chunk: Record) -> Path:
    name = chunk.name.hex()
    return directory / "v1" / "chunks" / name[:2] / f"{name}-{chunk.start}.chunk"


def files(directory: Path) -> list[Path]:
    return sorted((directory / "v1" / "chunks").glob("*/*.chunk"))


def lying(directory: Path) -> int:
    """Bytes that chunks really take."""
    return sum(path.stat().st_blocks * 512 for path in files(directory))


def pin_of(path: bytes, id: str = "ab12", fingerprint: bytes = FINGERPRINT, namespace: str = "n") -> Pin:  # noqa: A002
    space = namespace_id(namespace)
    return Pin(id, "a name", fingerprint, space, root_name(fingerprint, space), path, created=1_700_000_000.0)


def sound(tier: DiskTier) -> bool:
    """Whether every file is whole, and files and rows are the same."""
    findings = list(tier.verify())
    assert not findings, findings
    rows = {(row.key.name.hex(), row.key.start) for row in tier.all_rows()}
    on_disk = {tuple(path.stem.rsplit("-", 1)) for path in files(tier._directory.path)}
    return {(name, str(start)) for name, start in rows} == on_disk
