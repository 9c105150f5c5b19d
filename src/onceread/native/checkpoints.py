"""Memories that can't be cut anywhere: their attention by ranges, the rest of their state at exact positions.

The state of a sequence has two halves. Its full attention lies in cells, one a token, that can be shared, cut,
exported and joined like those of a plain model. The other half, a sliding window's cells or a recurrent state,
is right only at the very position where it was taken: the *checkpoint* there.

                    0             256            512    600
    segments        |--------------|--------------|------|      attention, cut and joined anywhere
    checkpoints                    ^                     ^      the rest, to go on from 256 or from 600

So a sequence is at ``length`` when it has the attention of [0, length) and the checkpoint of ``length``, and
every way to get there ends with :func:`settle`. docs/memories.md says what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from onceread.native import stateblob
from onceread.native.context import Context
from onceread.native.errors import (
    SequenceWrong,
    StateExportFailed,
    StateLayoutUnknown,
)
from onceread.native.model import MemoryKind

_HEAD = 8  # magic and sequence id, before every state
_CHUNKED = {"llama4"}  # these have chunks of fixed places in place of a window that slides


def needs_checkpoints(context: Context) -> bool:
    """Is there a half of the state that can't be cut? If not, nothing in this module may be used."""
    return context.model.memory_kind is not MemoryKind.PLAIN


# -- out of the context ------------------------------------------------------


def checkpoint(context: Context, seq: int, length: int) -> bytes:
    """The half of a sequence's state that can't be cut. The sequence must end at ``length`` exactly.

    Raises SequenceWrong if it does not, or if a window has lost a part of itself.
    """
    assert needs_checkpoints(context)
    assert length > 0
    verify(context, seq, length)
    part = bytes(context.export_state(seq, partial=True))
    _check_part(context, part, length)
    return part


def segment(context: Context, seq: int, start: int, end: int) -> bytes:
    """The attention of positions [start, end), laid out like a plain model's: see stateblob.

    Raises StateExportFailed, or StateLayoutUnknown for memories that are built otherwise.
    """
    assert needs_checkpoints(context)
    assert 0 <= start < end
    if not context.has_attention:
        if context.length(seq) < end:
            raise StateExportFailed(f"sequence {seq} ends at {context.length(seq)}, not at {end} or later")
        return stateblob.nothing(start, end - start)
    tmp = context.tmp
    context.drop(tmp)
    context.share(seq, tmp, start, end)
    try:
        rest = context.state_size(tmp, partial=True) - _HEAD
        whole = context.export_state(tmp, partial=False)
    finally:
        context.drop(tmp)
    blob = stateblob.in_order(bytes(memoryview(whole)[: len(whole) - rest]))
    stateblob.check(blob, start, end - start)
    return blob


# -- into the context --------------------------------------------------------


def restore(
    context: Context, seq: int, segments: Iterable[tuple[int, int, bytes]], part: bytes, length: int
) -> None:
    """Replace a sequence by the segments of [0, length), in ascending order, and the checkpoint of ``length``.

    Raises StateImportFailed, StateLayoutUnknown, SequenceWrong; the sequence is then empty.
    """
    context.drop(seq)
    at = 0
    for start, end, blob in segments:
        assert start == at, f"a segment from {start} after one up to {at}"
        attach(context, seq, blob, start, end)
        at = end
    settle(context, seq, part, length)


def attach(context: Context, seq: int, blob: bytes, start: int, end: int) -> None:
    """Append the attention of [start, end) to a sequence whose attention ends at ``start``.

    It can't be decoded until :func:`settle`, which also finds what is missing; others may decode in between.
    Raises StateImportFailed, StateLayoutUnknown; the sequence is then empty.
    """
    assert needs_checkpoints(context)
    assert seq != context.tmp
    tmp = context.tmp
    try:
        stateblob.check(blob, start, end - start)
        if not context.has_attention:
            return
        context.drop(tmp)
        try:
            context.import_state(tmp, blob + _hollow(context), partial=False)
            context.share(tmp, seq, start, end)
        finally:
            context.drop(tmp)
    except BaseException:
        context.drop(seq)
        raise


def lend(context: Context, src: int, dst: int, end: int) -> None:
    """Let ``dst``, which is empty, begin with the attention of [0, ``end``) of ``src``, sharing its cells.

    The rest of the state is not ``dst``'s: it can't be decoded until :func:`settle`. ``src`` may go on meanwhile.
    """
    assert needs_checkpoints(context)
    assert dst not in (src, context.tmp)
    context.drop(dst)
    if not context.has_attention:
        return
    tmp = context.tmp
    context.drop(tmp)
    empty = bytes(context.export_state(tmp, partial=True))
    context.share(src, tmp, 0, end)
    try:
        # A window held by two can be overwritten by neither, and a recurrent state is not that of ``end``.
        context.import_state(tmp, empty, partial=True)
        context.share(tmp, dst, 0, end)
    finally:
        context.drop(tmp)


def settle(context: Context, seq: int, part: bytes, length: int) -> None:
    """Put a checkpoint into a sequence that has the attention of [0, length), and drop what lies beyond.

    So a live sequence goes back to a checkpoint of its own, too.
    Raises StateImportFailed, StateLayoutUnknown, SequenceWrong; the sequence is then empty.
    """
    assert needs_checkpoints(context)
    assert seq != context.tmp
    try:
        _check_part(context, part, length)
        context.import_state(seq, part, partial=True)
        # Only now: before, a recurrent state that has gone on would refuse to be cut.
        context.truncate(seq, length)
        verify(context, seq, length)
    except BaseException:
        context.drop(seq)
        raise


def branch(context: Context, src: int, dst: int, part: bytes, length: int) -> None:
    """Let ``dst`` begin at a checkpoint of ``src``, which stays as it is and goes on as if nothing had happened.

    Attention is shared, the rest is ``dst``'s own: a window shared by two can't be overwritten by either, so
    its cells would be lost to all. On failure ``dst`` is empty: see :func:`settle`.
    """
    assert dst not in (src, context.tmp)
    context.drop(dst)
    context.share(src, dst, 0, length)
    settle(context, dst, part, length)


def fork(context: Context, src: int, dst: int, length: int) -> None:
    """Let ``dst`` begin where ``src`` ends now, which must be at ``length``. On failure ``dst`` is empty."""
    if context.window:
        branch(context, src, dst, checkpoint(context, src, length), length)
        return
    assert dst not in (src, context.tmp)
    verify(context, src, length)
    context.drop(dst)
    context.share_all(src, dst)  # llama.cpp copies a recurrent state when the first of its owners goes on


# -- room ----------------------------------------------------------------------


def window_room(context: Context) -> int:
    """Cells that llama.cpp has for sliding windows, in all; 0 if the model has none.

    A decode needs, beside its own tokens, :func:`window_cells` for each sequence in the context. If windows are
    short or sequences few that is always there, however full the context is; else it has to be counted.
    """
    if not context.window:
        return 0
    params = context.params
    if params.swa_full:
        return context.n_ctx
    wanted = context.window * context.n_seq_max + context.n_batch
    return -(-min(context.n_ctx, wanted) // 256) * 256


def window_cells(context: Context, length: int) -> int:
    """Cells that the window of a sequence of ``length`` tokens takes. Windows are not shared: see :func:`branch`."""
    return min(length, context.window)


# -- what a sequence has -----------------------------------------------------


def verify(context: Context, seq: int, length: int) -> None:
    """Raise SequenceWrong unless a sequence can go on at ``length``: all of its attention, and the rest, is there.

    llama.cpp decodes on a sequence that lacks any of it, and returns 0.
    """
    held, first = context.length(seq), context.first_position(seq)
    if held != length:
        raise SequenceWrong(f"sequence {seq} ends at {held}, not at {length}")
    if context.model.memory_kind is MemoryKind.RECURRENT:
        # What llama.cpp calls the first position is the last one of the recurrent state.
        if first != length - 1:
            raise SequenceWrong(f"sequence {seq} ends at {length} with a recurrent state after {first}")
    elif first > (wanted := window_start(context, length)):
        raise SequenceWrong(f"sequence {seq} has a window from {first} on, not from {wanted}")
    if context.has_attention and (cells := attention_cells(context, seq)) != length:
        raise SequenceWrong(f"sequence {seq} has attention for {cells} positions, not {length}")


def window_start(context: Context, length: int) -> int:
    """The first position in the window of the token that comes at ``length``; 0 if there is no window."""
    if not context.window:
        return 0
    if context.model.architecture in _CHUNKED:
        return min(length // context.window * context.window, length - 1)
    return max(0, length - context.window + 1)


def attention_cells(context: Context, seq: int) -> int:
    """How many positions of full attention a sequence has; -1 if it has none at its beginning.

    llama.cpp tells nothing but the size in bytes, so it is divided by that of a cell.
    """
    size = _attention_bytes(context, seq)
    if size == _NO_CELLS:
        return 0
    tmp = context.tmp
    context.drop(tmp)
    context.share(seq, tmp, 0, 1)
    one = _attention_bytes(context, tmp)
    context.share(seq, tmp, 1, 2)
    two = _attention_bytes(context, tmp)
    context.drop(tmp)
    if one == _NO_CELLS or (one == two and size != one):
        return -1
    return 1 if size == one else 1 + (size - one) // (two - one)


_NO_CELLS = 8  # bytes of an attention without cells: one stream of none


def _attention_bytes(context: Context, seq: int) -> int:
    return context.state_size(seq, partial=False) - context.state_size(seq, partial=True)


def _hollow(context: Context) -> bytes:
    """What stands in a state for the half that can't be cut when there is none of it."""
    context.drop(context.tmp)
    return bytes(context.export_state(context.tmp, partial=True)[_HEAD:])


def _check_part(context: Context, part: bytes, length: int) -> None:
    # llama.cpp takes whatever positions a state names.
    if context.window:
        positions = stateblob.window_positions(part)
        first, last = int(positions[0]), int(positions[-1])
        if last != length - 1 or first > window_start(context, length):
            raise StateLayoutUnknown(f"a window of positions {first} to {last} is no checkpoint of {length}")
    elif (last := stateblob.recurrent_position(part)) != length - 1:
        raise StateLayoutUnknown(f"a recurrent state after position {last} is no checkpoint of {length}")
