"""The layout of a plain-attention state blob: enough to cut one in two, and to see that it is what it should be.

    u32 magic, i32 sequence, u32 streams (1), u32 cells
    per cell: i32 position, u32 sequences (1), i32 sequence; models with M-RoPE have 12 bytes more before the last
    u32 v_trans, u32 layers
    per layer, keys:    i32 type, u64 bytes a row, rows
    per layer, values:  the same; or, with v_trans, i32 type, u32 bytes an element, u32 n, and n rows of cells

Established by experiment on llama.cpp 0c1e5709. A blob of any other layout raises StateLayoutUnknown; models
without cached values (MLA) have no third part. Cells come in the order in which they lie in the context, which
is not always that of their positions: :func:`in_order` puts them right.

For models without any attention, :func:`nothing` stands for the state of a range; it can be cut and checked alike.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from onceread.native.errors import StateLayoutUnknown

_HEAD = struct.Struct("<IiII")
_CELLS = (12, 24)  # bytes of a cell's entry: most models, and those with M-RoPE
_TAIL = struct.Struct("<II")
_ROWS = struct.Struct("<iQ")
_COLUMNS = struct.Struct("<iII")
_NOTHING = struct.Struct("<8sII")
_NOTHING_MARK = b"nothing\0"
_PART_HEAD = struct.Struct("<Ii")
_RECURRENT = struct.Struct("<IiI")
Positions = np.ndarray[Any, np.dtype[np.int32]]


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
    cell: int  # bytes of a cell's entry
    v_trans: bool
    tail: int  # where v_trans stands
    parts: tuple[_Rows, ...]
    kinds: tuple[
        tuple[int, int, int], ...
    ]  # (type, bytes a row, rows a cell) of each part: the same for all blobs


def layout(blob: bytes) -> Layout:
    """Raises StateLayoutUnknown unless the blob is exactly of the layout described above."""
    if blob.startswith(_NOTHING_MARK):
        return Layout(_nothing(blob)[1], 0, False, len(blob), (), ())
    found = [_layout(blob, cell) for cell in _CELLS]
    for one in found:
        if isinstance(one, Layout):
            return one
    raise StateLayoutUnknown(found[0])


def _layout(blob: bytes, cell: int) -> Layout | str:
    """The layout, if cells have entries of this size; or else what is wrong."""
    try:
        _, _, streams, cells = _HEAD.unpack_from(blob, 0)
        if streams != 1:
            return f"a state of {streams} streams"
        tail = _HEAD.size + cells * cell
        v_trans, layers = _TAIL.unpack_from(blob, tail)
        if v_trans > 1 or layers > 10_000:
            return f"a state with v_trans {v_trans} and {layers} layers"
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
    except struct.error:
        return f"a state of {len(blob)} bytes ends too early"
    if at != len(blob):
        return f"a state of {len(blob)} bytes, of which {at} are accounted for"
    return Layout(cells, cell, bool(v_trans), tail, tuple(parts), tuple(kinds))


def cut(blob: bytes, n: int) -> tuple[bytes, bytes]:
    """The blob of the first ``n`` cells, and that of the rest. Raises StateLayoutUnknown."""
    if blob.startswith(_NOTHING_MARK):
        start, cells = _nothing(blob)
        assert 0 < n < cells
        return nothing(start, n), nothing(start + n, cells - n)
    whole = layout(blob)
    assert 0 < n < whole.cells
    return _slice(blob, whole, 0, n), _slice(blob, whole, n, whole.cells)


def part(blob: bytes, start: int, first: int, last: int) -> bytes:
    """Of a blob that begins at position ``start`` the cells [first, last). Raises StateLayoutUnknown."""
    n = layout(blob).cells
    if last < start + n:
        blob = cut(blob, last - start)[0]
    return cut(blob, first - start)[1] if first > start else blob


def check(blob: bytes, start: int, n: int) -> None:
    """Raise StateLayoutUnknown unless the blob holds the ``n`` positions from ``start`` on, in order.

    llama.cpp takes whatever positions a blob names, and one outside the context damages it for good.
    """
    if blob.startswith(_NOTHING_MARK):
        if _nothing(blob) != (start, n):
            raise StateLayoutUnknown(f"a state of other positions than {start} to {start + n - 1}")
        return
    cells = _unpack(_HEAD, blob, 0)[3]
    if cells != n:
        raise StateLayoutUnknown(f"a state of {cells} cells, not {n}")
    wanted = np.arange(start, start + n)
    if not any(np.array_equal(_positions(blob, _HEAD.size, n, cell), wanted) for cell in _CELLS):
        raise StateLayoutUnknown(f"a state of other positions than {start} to {start + n - 1}")


def in_order(blob: bytes) -> bytes:
    """The same cells in the order of their positions: the blob itself if they are. Raises StateLayoutUnknown."""
    whole = layout(blob)
    if not whole.parts:
        return blob
    positions = _positions(blob, _HEAD.size, whole.cells, whole.cell)
    if (np.diff(positions) > 0).all():
        return blob
    order = np.argsort(positions, kind="stable")
    table = np.frombuffer(blob, np.uint8, whole.cells * whole.cell, _HEAD.size)
    out: list[bytes | memoryview] = [
        blob[: _HEAD.size],
        table.reshape(whole.cells, whole.cell)[order].tobytes(),
    ]
    view = memoryview(blob)
    out.append(view[whole.tail : whole.tail + _TAIL.size])
    for part in whole.parts:
        out.append(view[part.header : part.offset])
        data = np.frombuffer(blob, np.uint8, part.size(whole.cells), part.offset)
        out.append(data.reshape(part.n, whole.cells, part.row)[:, order].tobytes())
    return b"".join(out)


# -- models without attention ----------------------------------------------


def nothing(start: int, n: int) -> bytes:
    """What stands for the attention of ``n`` positions where there is none."""
    return _NOTHING.pack(_NOTHING_MARK, start, n)


def _nothing(blob: bytes) -> tuple[int, int]:
    if len(blob) != _NOTHING.size:
        raise StateLayoutUnknown(f"{len(blob)} bytes in the place of a state that has none")
    _, start, n = _NOTHING.unpack(blob)
    return start, n


# -- the part that can't be cut ----------------------------------------------


def window_positions(part: bytes | bytearray) -> Positions:
    """The positions, ascending, in the state of a sliding window. Raises StateLayoutUnknown."""
    _, _, streams, cells = _unpack(_HEAD, part, 0)
    if streams != 1:
        raise StateLayoutUnknown(f"a window of {streams} streams")
    for cell in _CELLS:
        positions = np.sort(_positions(part, _HEAD.size, cells, cell))
        if len(positions) and positions[0] >= 0 and (np.diff(positions) == 1).all():
            return positions
    raise StateLayoutUnknown("a window with a hole in it")


def recurrent_position(part: bytes | bytearray) -> int:
    """The position of the last token in a recurrent state. Raises StateLayoutUnknown."""
    cells, position, sequences = _unpack(_RECURRENT, part, _PART_HEAD.size)
    if cells != 1 or sequences != 0:
        raise StateLayoutUnknown(f"a recurrent state of {cells} cells")
    return int(position)


def _unpack(form: struct.Struct, blob: bytes | bytearray, at: int) -> tuple[Any, ...]:
    try:
        return form.unpack_from(blob, at)
    except struct.error as error:
        raise StateLayoutUnknown(f"a state of {len(blob)} bytes ends too early") from error


def _positions(blob: bytes | bytearray, at: int, n: int, cell: int) -> Positions:
    """Of the ``n`` cells whose table begins at ``at``; none if it is no table of cells of that size."""
    if at + n * cell > len(blob):
        return np.empty(0, np.int32)
    table = np.frombuffer(blob, "<i4", n * cell // 4, at).reshape(n, cell // 4)
    return table[:, 0].astype(np.int32) if (table[:, 1] == 1).all() else np.empty(0, np.int32)


def _slice(blob: bytes, whole: Layout, start: int, end: int) -> bytes:
    view = memoryview(blob)
    magic, seq, streams, _ = _HEAD.unpack_from(blob, 0)
    out: list[bytes | memoryview] = [
        _HEAD.pack(magic, seq, streams, end - start),
        view[_HEAD.size + start * whole.cell : _HEAD.size + end * whole.cell],
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
