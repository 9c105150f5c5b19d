"""The file of one chunk or checkpoint: describes itself, is written whole, and is believed only after every check.

     8   magic "ONCEREAD"
     4   format version                           all numbers are little endian
     4   length of the header
     …   header: what the chunk is, see _HEADER; then its tokens, their lengths, their bytes, the model's label
    16   checksum of all before it: the head can be believed without reading the blob
     …   blob
    16   checksum of all before it

The checksums are xxh3_128: made for accidents, not for adversaries. A file is never mapped into memory, because
one that is truncated under a mapping kills the process.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128

from onceread.cache.contract import HASH, TOKEN, Record
from onceread.cache.errors import ChunkDamaged, ChunkGone
from onceread.cache.names import checkpoint_name

MAGIC = b"ONCEREAD"
VERSION = 2
SUM = 16  # bytes of a checksum
_PRELUDE = struct.Struct("<8sII")
# fingerprint, namespace, root, name, parent; start, reach, tokens; bytes of lengths, spelled, label; bytes of blob
_HEADER = struct.Struct("<32s32s32s32s32sIIIIIIQ")
_MAX_HEADER = 16 * 1024 * 1024  # far more than any chunk needs; what is larger is not a header
_BLOCK = 1024 * 1024  # read at once where the blob is not kept
_MAX_READ = 1024 * 1024 * 1024  # one call of read takes less than 2 GiB on every system

Blob = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says about itself."""

    fingerprint: bytes
    label: str  # of the model, for people
    record: Record
    head_bytes: int
    blob_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.head_bytes + self.blob_bytes + SUM


def pack_head(fingerprint: bytes, record: Record, blob_bytes: int, label: str = "") -> bytes:
    """All that lies before the blob."""
    names = (fingerprint, record.namespace, record.root, record.name, record.parent)
    assert all(len(name) == HASH for name in names)
    assert _makes_sense(record)
    assert len(record.tokens) % TOKEN == 0
    assert len(record.lengths) in (0, 2 * record.n)
    text = label.encode("utf-8", errors="replace")
    sizes = (record.n, len(record.lengths), len(record.spelled), len(text))
    header = _HEADER.pack(*names, record.start, record.reach, *sizes, blob_bytes)
    header += record.tokens + record.lengths + record.spelled + text
    head = _PRELUDE.pack(MAGIC, VERSION, len(header)) + header
    return head + xxh3_128(head).digest()


def write(path: Path, head: bytes, blob: Blob, *, fsync: bool = False) -> None:
    """A new file, 0600 whatever the umask. Nothing stays if it fails. Raises OSError."""
    checksum = xxh3_128(head)
    checksum.update(blob)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, 0o600)
            for part in (head, blob, checksum.digest()):
                _write_all(fd, memoryview(part).cast("B"))
            if fsync:
                getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync
        finally:
            os.close(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read(path: Path, fingerprint: bytes, record: Record) -> bytes:
    """The blob of exactly this chunk. Raises ChunkGone, ChunkDamaged; OSError if the file can't be had just now."""
    fd = _open(path)
    try:
        head, raw = _read_head(fd, path)
        _compare(path, head, fingerprint, record)
        blob = _read_exactly(fd, head.blob_bytes, head.head_bytes, path)
        checksum = xxh3_128(raw)
        checksum.update(blob)
        _compare_checksum(fd, path, head, checksum.digest())
        return blob
    finally:
        os.close(fd)


def read_head(path: Path) -> Head:
    """What a file says it is. The blob is not read; that the file has the right length is certain."""
    fd = _open(path)
    try:
        return _read_head(fd, path)[0]
    finally:
        os.close(fd)


def check(path: Path, fingerprint: bytes | None = None, record: Record | None = None) -> Head:
    """Read all of a file and keep nothing of it. Raises as ``read`` does."""
    fd = _open(path)
    try:
        head, raw = _read_head(fd, path)
        if fingerprint is not None and record is not None:
            _compare(path, head, fingerprint, record)
        checksum = xxh3_128(raw)
        end = head.head_bytes + head.blob_bytes
        for at in range(head.head_bytes, end, _BLOCK):
            checksum.update(_read_exactly(fd, min(_BLOCK, end - at), at, path))
        _compare_checksum(fd, path, head, checksum.digest())
        return head
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        # O_NONBLOCK, because opening a fifo would wait for its writer.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise ChunkGone(f"{path}: is not there") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ChunkDamaged(f"{path}: is a symbolic link") from None
        if error.errno in (errno.ENXIO, errno.EACCES, errno.EPERM):
            raise ChunkDamaged(f"{path}: can't be read: {error.strerror}") from None
        raise


def _read_head(fd: int, path: Path) -> tuple[Head, bytes]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ChunkDamaged(f"{path}: is not a regular file")
    if status.st_size < _PRELUDE.size:
        raise ChunkDamaged(f"{path}: has {status.st_size} bytes, less than any chunk")
    prelude = _read_exactly(fd, _PRELUDE.size, 0, path)
    magic, version, length = _PRELUDE.unpack(prelude)
    if magic != MAGIC:
        raise ChunkDamaged(f"{path}: does not begin as a chunk does")
    if version != VERSION:
        raise ChunkDamaged(f"{path}: has format version {version}, and only {VERSION} can be read")
    head_bytes = _PRELUDE.size + length + SUM
    if not _HEADER.size <= length <= _MAX_HEADER or status.st_size < head_bytes:
        raise ChunkDamaged(f"{path}: has {status.st_size} bytes, and a header of {length}")
    raw = prelude + _read_exactly(fd, length + SUM, _PRELUDE.size, path)
    if xxh3_128(raw[:-SUM]).digest() != raw[-SUM:]:
        raise ChunkDamaged(f"{path}: the header's checksum is wrong")
    head = _parse(raw, path)
    if status.st_size != head.file_bytes:
        raise ChunkDamaged(f"{path}: has {status.st_size} bytes, and should have {head.file_bytes}")
    return head, raw


def _parse(raw: bytes, path: Path) -> Head:
    fields = _HEADER.unpack_from(raw, _PRELUDE.size)
    fingerprint, namespace, root, name, parent, start, reach, n, *of_texts, blob_bytes = fields
    of_lengths, of_spelled, of_label = of_texts
    at = _PRELUDE.size + _HEADER.size
    parts = []
    for size in (n * TOKEN, of_lengths, of_spelled, of_label):
        parts.append(raw[at : at + size])
        at += size
    tokens, lengths, spelled, label = parts
    record = Record(root, namespace, name, parent, start, tokens, spelled, lengths, reach)
    if at + SUM != len(raw) or of_lengths not in (0, 2 * n) or not _makes_sense(record):
        raise ChunkDamaged(f"{path}: the header contradicts itself")
    return Head(fingerprint, label.decode("utf-8", errors="replace"), record, len(raw), blob_bytes)


def _makes_sense(record: Record) -> bool:
    if not record.is_checkpoint:
        return record.reach == 0
    return 0 < record.reach <= record.start and record.name == checkpoint_name(record.parent)


def _compare(path: Path, head: Head, fingerprint: bytes, record: Record) -> None:
    if head.fingerprint != fingerprint:
        raise ChunkDamaged(f"{path}: belongs to another model or other settings")
    there = head.record  # its reach may be another one: two processes may have had other checkpoints below it
    for what in ("root", "namespace", "name", "parent", "start", "tokens"):
        if getattr(there, what) != getattr(record, what):
            raise ChunkDamaged(f"{path}: is another chunk: its {what} {_verb(what)} different")


def _verb(what: str) -> str:
    return "are" if what.endswith("s") else "is"


def _compare_checksum(fd: int, path: Path, head: Head, checksum: bytes) -> None:
    if _read_exactly(fd, SUM, head.head_bytes + head.blob_bytes, path) != checksum:
        raise ChunkDamaged(f"{path}: the checksum is wrong")


def _read_exactly(fd: int, size: int, offset: int, path: Path) -> bytes:
    """``pread`` fills a bytes object in place: a blob of 80 MB is not copied unless the system cuts the read."""
    data = _pread(fd, min(size, _MAX_READ), offset, path)
    if len(data) == size:
        return data
    parts, got = [data], len(data)
    while got < size:
        data = _pread(fd, min(size - got, _MAX_READ), offset + got, path)
        if not data:
            raise ChunkDamaged(f"{path}: ends {size - got} bytes early: it was truncated while it was read")
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _pread(fd: int, size: int, offset: int, path: Path) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ChunkDamaged(f"{path}: can't be read: {error.strerror}") from None  # a bad sector


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data[:_MAX_READ]) :]
