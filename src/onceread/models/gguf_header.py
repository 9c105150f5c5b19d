"""What a GGUF file says of itself, read fast and without trusting it.

The `gguf` package's reader makes an array for each token of the vocabulary: seconds for 150,000 tokens, where
stepping over them takes a fraction of one; and it maps the file and answers a torn one with an IndexError. So the
header is read here. Every length is held against what is left of the file before anything is read or kept, and of
long arrays (the vocabulary, its merges) only the type and the length are kept.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from onceread.models.errors import GgufInvalid
from onceread.models.gguf_types import TENSOR_TYPES

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER = 64 * 2**20  # bytes; vocabularies of 260,000 tokens take 15 MB
_MAX_KEY = 65_535  # the format's own limit
_MAX_STRING = 8 * 2**20  # bytes of a value that is kept; chat templates have some 10,000
_MAX_ENTRIES = 1_000_000
_MAX_DIMENSIONS = 4
_KEPT = 4096  # elements: arrays with a number for each layer are kept, vocabularies are not
_READ = 2**20  # bytes asked of the file at a time
_DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    7: ("bool", "<?"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array whose elements were stepped over."""

    kind: str  # "string", "f32", …
    length: int


Scalar = int | float | bool | str
Value = Scalar | list[Scalar] | LongArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, as the header announces it."""

    name: str
    shape: tuple[int, ...]
    type: str  # "Q4_K", …; "type 99" if it is not known here
    bytes: int | None  # None: the type is not known
    offset: int  # from the start of the data

    @property
    def weights(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and the tensors of one file."""

    path: Path
    version: int
    metadata: dict[str, Value]
    tensors: list[Tensor] = field(repr=False)
    data_start: int  # where the tensors' data begin, in bytes from the file's start
    file_bytes: int

    @property
    def missing_bytes(self) -> int:
        """How much shorter the file is than its tensors need; 0 if it is whole."""
        ends = (t.offset + t.bytes for t in self.tensors if t.bytes is not None)
        return max(0, self.data_start + max(ends, default=0) - self.file_bytes)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or "unknown"

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int = 0) -> int:
        """A whole number, or the largest of a list with one for each layer."""
        return max(self.numbers(key), default=default)

    def numbers(self, key: str) -> list[int]:
        """The whole numbers of a list, or the one there is; empty if there is none."""
        value = self.metadata.get(key)
        values = value if isinstance(value, list) else [value]
        return [int(one) for one in values if isinstance(one, int)]

    def of(self, key: str) -> str:
        """The full key of one of the architecture's own: ``llama.context_length``."""
        return f"{self.architecture}.{key}"


def read_header(path: Path) -> Header:
    """Read the header of one file (of a split model: of one part). Raises GgufInvalid, OSError."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for whoever writes to it
        raise GgufInvalid(f"{path}: it is not a file")
    try:
        with path.open("rb") as file:
            return _Reader(path, file).header()
    except struct.error as error:  # pragma: no cover - every read is checked first
        raise GgufInvalid(f"{path} can't be read as GGUF: {error}") from error


class _Reader:
    """A place in the file, and a window of bytes around it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = path.stat().st_size
        self._buffer = b""
        self._base = 0  # the buffer's place in the file
        self._at = 0  # in the buffer

    def header(self) -> Header:
        if self._take(4, "its first bytes") != _MAGIC:
            raise self._wrong("it is not a GGUF file (it does not start with 'GGUF')")
        version = self._u32("its version")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise self._wrong("it is a big-endian GGUF, which only big-endian machines can load")
            raise self._wrong(f"it is GGUF version {version}, and versions 2 and 3 are known")
        n_tensors = self._count(self._u64("the number of tensors"), 24, "tensors")
        n_values = self._count(self._u64("the number of metadata"), 13, "metadata")
        metadata: dict[str, Value] = {}
        for _ in range(n_values):
            key = self._string("a key", _MAX_KEY)
            metadata[key] = self._value(self._u32(f"the type of {key!r}"), key)
        tensors = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {alignment!r}, not a power of two")
        start = self._place
        return Header(
            path=self._path,
            version=version,
            metadata=metadata,
            tensors=tensors,
            data_start=-(-start // alignment) * alignment,
            file_bytes=self._size,
        )

    # -- what the header consists of ---------------------------------------

    def _value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            return self._string(f"the value of {key!r}", _MAX_STRING)
        if kind == _ARRAY:
            return self._array(key)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Scalar:
        layout = self._layout(kind, key)
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout), f"the value of {key!r}"))
        assert isinstance(value, int | float | bool)
        return value

    def _array(self, key: str) -> Value:
        kind = self._u32(f"the type of {key!r}")
        length = self._u64(f"the length of {key!r}")
        if kind == _ARRAY:
            raise self._wrong(f"{key!r} is an array of arrays, which no model has")
        if kind == _STRING:
            self._fits(8 * length, f"{key!r}, an array of {length:,} texts,")
            if length > _KEPT:
                self._skip_strings(length, key)
                return LongArray("string", length)
            return [self._string(f"an element of {key!r}", _MAX_STRING) for _ in range(length)]
        layout = self._layout(kind, key)
        size = struct.calcsize(layout)
        self._fits(size * length, f"{key!r}, an array of {length:,} numbers,")
        if length > _KEPT:
            self._skip(size * length)
            return LongArray(_SCALARS[kind][0], length)
        raw = self._take(size * length, f"the value of {key!r}")
        return [value for (value,) in struct.iter_unpack(layout, raw)]

    def _layout(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            raise self._wrong(f"{key!r} has the type {kind}, which GGUF does not have")
        return _SCALARS[kind][1]

    def _tensor(self) -> Tensor:
        name = self._string("a tensor's name", _MAX_KEY)
        n = self._u32(f"the shape of {name!r}")
        if n > _MAX_DIMENSIONS:
            raise self._wrong(f"the tensor {name!r} has {n:,} dimensions, and {_MAX_DIMENSIONS} are the most")
        shape = tuple(self._u64(f"the shape of {name!r}") for _ in range(n))
        weights = math.prod(shape)
        if weights >= 2**63:
            raise self._wrong(f"the tensor {name!r} has {weights:,} weights")
        kind = self._u32(f"the type of {name!r}")
        offset = self._u64(f"the place of {name!r}")
        label, block, block_bytes = TENSOR_TYPES.get(kind, (f"type {kind}", 0, 0))
        size = weights // block * block_bytes if block else None
        return Tensor(name, shape, label, size, offset)

    def _string(self, what: str, limit: int) -> str:
        length = self._u64(what)
        self._fits(length, f"{what}, a text of {length:,} bytes,")
        if length > limit:
            raise self._wrong(f"{what} is a text of {length:,} bytes, and {limit:,} are the most")
        return self._take(length, what).decode("utf-8", errors="replace")

    def _skip_strings(self, count: int, key: str) -> None:
        # The hot loop: one turn for each token of the vocabulary and each merge. The window is used directly.
        unpack = _U64.unpack_from
        while count:
            buffer, at, end = self._buffer, self._at, len(self._buffer) - 8
            while count and at <= end:
                (length,) = unpack(buffer, at)
                at += 8 + length
                count -= 1
            self._at = at
            if at > len(buffer):
                self._skip(0)
            if count:
                self._need(8, f"an element of {key!r}")

    # -- bytes -------------------------------------------------------------

    @property
    def _place(self) -> int:
        return self._base + self._at

    def _u32(self, what: str) -> int:
        return int(_U32.unpack(self._take(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack(self._take(8, what))[0])

    def _count(self, count: int, least: int, what: str) -> int:
        """A number of things that take at least so many bytes each."""
        if count > _MAX_ENTRIES:
            raise self._wrong(f"it announces {count:,} {what}, and {_MAX_ENTRIES:,} are the most")
        self._fits(count * least, f"{count:,} {what}")
        return count

    def _fits(self, n: int, what: str) -> None:
        left = self._size - self._place
        if n > left:
            raise self._wrong(f"{what} can't be in the {left:,} bytes that are left of the file: it is torn")

    def _take(self, n: int, what: str) -> bytes:
        self._need(n, what)
        start = self._at
        self._at += n
        return self._buffer[start : self._at]

    def _skip(self, n: int) -> None:
        self._at += n
        if self._place > self._size:
            raise self._wrong("it ends inside of its header: it is torn")
        if self._place > _MAX_HEADER:
            raise self._wrong(f"its header goes on for more than {_MAX_HEADER // 2**20} MiB")

    def _need(self, n: int, what: str) -> None:
        """Have ``n`` bytes from here on in the window."""
        if self._at + n <= len(self._buffer):
            return
        self._base += self._at
        self._at = 0
        if self._base + n > _MAX_HEADER:
            raise self._wrong(f"its header goes on for more than {_MAX_HEADER // 2**20} MiB")
        self._file.seek(self._base)
        self._buffer = self._file.read(max(n, _READ))
        if len(self._buffer) < n:
            raise self._wrong(f"it ends inside of {what}: it is torn")

    def _wrong(self, why: str) -> GgufInvalid:
        return GgufInvalid(f"{self._path}: {why}; download it again, if it is to be a model")
