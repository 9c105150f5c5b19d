"""The layout of a plain-attention state blob: enough to cut one in two, and to see that it is what it should be.

    u32 magic, i32 sequence, u32 streams (1), u32 cells
    per cell: i32 position, u32 sequences (1), i32 sequence
    u32 v_trans, u32 layers
    per layer, keys:    i32 type, u64 bytes a row, rows
    per layer, values:  the same; or, with v_trans, i32 type, u32 bytes an element, u32 n, and n rows of cells

Established by experiment on llama.cpp 0c1e5709. A blob of any other layout raises StateLayoutUnknown; models
without cached values (MLA) have no third part.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from onceread.native.errors import StateLayoutUnknown

_HEAD = struct.Struct("<IiII")
_CELL = 12
_TAIL = struct.Struct("<II")
_ROWS = struct.Struct("<iQ")
_COLUMNS = struct.Struct("<iII")


@dataclass(frozen=True, slots=True)
class _Rows:
    """A stretch of the blob with one row for each cell, or with v_trans, ``n`` rows of one element for each."""

    header: int  # where its description begins
    offset: int  # where its data begins
    row: int  # bytes for one cell
    n: int = 1

    def size(self, cells: int) -> int:
        return self.row * self.n * cells


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is in one blob."""

    cells: int
    v_trans: bool
    tail: int  # where v_trans stands
    parts: tuple[_Rows, ...]
    kinds: tuple[
        tuple[int, int, int], ...
    ]  # (type, bytes a row, rows a cell) of each part: the same for all blobs


def layout(blob: bytes) -> Layout:
    """Raises StateLayoutUnknown unless the blob is exactly of the layout described above."""
    try:
        return _layout(blob)
    except struct.error as error:
        raise StateLayoutUnknown(f"a state of {len(blob)} bytes ends too early") from error


def _layout(blob: bytes) -> Layout:
    _, _, streams, cells = _HEAD.unpack_from(blob, 0)
    if streams != 1:
        raise StateLayoutUnknown(f"a state of {streams} streams")
    tail = _HEAD.size + cells * _CELL
    v_trans, layers = _TAIL.unpack_from(blob, tail)
    if v_trans > 1 or layers > 10_000:
        raise StateLayoutUnknown(f"a state with v_trans {v_trans} and {layers} layers")
    at = tail + _TAIL.size
    parts: list[_Rows] = []
    kinds: list[tuple[int, int, int]] = []
    for _ in range(layers):
        kind, row = _ROWS.unpack_from(blob, at)
        parts.append(_Rows(at, at + _ROWS.size, row))
        kinds.append((kind, row, 1))
        at += _ROWS.size + row * cells
    for _ in range(layers if at < len(blob) else 0):
        if v_trans:
            kind, row, n = _COLUMNS.unpack_from(blob, at)
            size = _COLUMNS.size
        else:
            (kind, row), n = _ROWS.unpack_from(blob, at), 1
            size = _ROWS.size
        parts.append(_Rows(at, at + size, row, n))
        kinds.append((kind, row, n))
        at += size + row * n * cells
    if at != len(blob):
        raise StateLayoutUnknown(f"a state of {len(blob)} bytes, of which {at} are accounted for")
    return Layout(cells, bool(v_trans), tail, tuple(parts), tuple(kinds))


def cut(blob: bytes, n: int) -> tuple[bytes, bytes]:
    """The blob of the first ``n`` cells, and that of the rest. Raises StateLayoutUnknown."""
    whole = layout(blob)
    assert 0 < n < whole.cells
    return _slice(blob, whole, 0, n), _slice(blob, whole, n, whole.cells)


def check(blob: bytes, start: int, n: int) -> None:
    """Raise StateLayoutUnknown unless the blob holds the ``n`` positions from ``start`` on, in order.

    llama.cpp takes whatever positions a blob names, and one outside the context damages it for good.
    """
    try:
        cells = _HEAD.unpack_from(blob, 0)[3]
        if cells != n:
            raise StateLayoutUnknown(f"a state of {cells} cells, not {n}")
        table = np.frombuffer(blob, dtype="<i4", count=3 * n, offset=_HEAD.size).reshape(n, 3)
    except (struct.error, ValueError) as error:
        raise StateLayoutUnknown(f"a state of {len(blob)} bytes ends too early") from error
    if not np.array_equal(table[:, 0], np.arange(start, start + n)) or not (table[:, 1] == 1).all():
        raise StateLayoutUnknown(f"a state of other positions than {start} to {start + n - 1}")


def _slice(blob: bytes, whole: Layout, start: int, end: int) -> bytes:
    view = memoryview(blob)
    magic, seq, streams, _ = _HEAD.unpack_from(blob, 0)
    out: list[bytes | memoryview] = [
        _HEAD.pack(magic, seq, streams, end - start),
        view[_HEAD.size + start * _CELL : _HEAD.size + end * _CELL],
        view[whole.tail : whole.tail + _TAIL.size],
    ]
    for part in whole.parts:
        out.append(view[part.header : part.offset])
        if part.n == 1:
            out.append(view[part.offset + start * part.row : part.offset + end * part.row])
        else:
            data = np.frombuffer(blob, np.uint8, part.size(whole.cells), part.offset)
            columns = data.reshape(part.n, whole.cells * part.row)
            out.append(columns[:, start * part.row : end * part.row].tobytes())
    return b"".join(out)
