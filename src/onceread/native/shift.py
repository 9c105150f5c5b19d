"""State at another position: the keys of a stretch turned to where it is wanted, in a small context of their own.

llama.cpp can shift positions in place (``seq_add``), and turns the keys at the next decode. In the context that
serves conversations this is not for us: the position lies in the cell, so whoever shares it is moved too; until
that decode the state must not be exported, for it has the new positions and the old keys; and the decode turns
every cell of the context, also those shifted by nothing, which rope scaling with a magnitude (YaRN) multiplies
once more. So a copy is turned elsewhere, comes back as bytes that are whole, and is loaded like any other state:

    source    |--------|=========== blob ===========|
    scratch                |=== blob, turned ===|
    target    |- exact -|-gap-|=== appended ====|        other sequences: not touched

A stretch that was moved is an approximation whatever the arithmetic: its tokens attended to text that may be gone.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

import numpy as np

from onceread.native import stateblob
from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.errors import ContextError, StateImportFailed
from onceread.native.library import lib
from onceread.native.model import MemoryKind, Model

_CELLS = 512  # of the scratch context: a chunk and the token that makes llama.cpp turn it
_BATCH = 8  # at least its sequences, or llama.cpp aborts after a shift
_STRETCH, _EXTRA = 0, 1  # the scratch context's sequences
_ROPES = (0, 2)  # llama.cpp's NORM and NEOX; others have several positions a token, or none
_TURNABLE = ("f32", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # bf16 aborts the process
_PROBE_TOKENS = 16
_PROBE_AT = 1000
# How far a state that was turned may be from one that was read there, relative to its size. In the first layer's
# keys rounding gives 0.001, a magnitude applied twice 0.1, another position 1. Deeper layers add the noise of
# quantized weights, 0.05 at the end of 30 layers.
_FIRST_BOUND = 0.02
_BOUND = 0.3


class ShiftUnsupported(ContextError):
    """The state of this model, or in this context, can't be moved to other positions."""


def refusal(model: Model, type_k: str) -> str | None:
    """Why state of this model can't be moved, as far as its metadata tells; None if it says nothing against it."""
    if model.memory_kind is not MemoryKind.PLAIN:
        return f"the model's memory is not plain attention ({model.memory_kind.value})"
    if int(lib.llama_model_rope_type(model.handle)) not in _ROPES:
        return "the model's positions are not a single rotation"
    scaling = model.metadata.get(f"{model.architecture}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        return f"the model's rope scaling ({scaling}) is applied twice to keys that are turned"
    factor = model.metadata.get(f"{model.architecture}.rope.scaling.attn_factor", "1")
    if float(factor) != 1:
        return f"the model's rope has a magnitude ({factor}), which is applied twice to keys that are turned"
    if type_k not in _TURNABLE:
        return f"keys of the type {type_k} can't be turned; use f16"
    return None


class Shifter:
    """Moves state into one context. On that context's thread.

    Holds a small context of its own: memory for 512 tokens. Each piece that is moved costs a decode of one
    token there, about a hundredth of what reading the piece would.
    """

    def __init__(self, context: Context, *, cells: int = _CELLS) -> None:
        """Raises ShiftUnsupported, ContextTooLarge."""
        if reason := refusal(context.model, context.params.type_k):
            raise ShiftUnsupported(f"state can't be moved: {reason}")
        self._context = context
        self._scratch = _Scratch(context, cells)
        try:
            if not self._scratch.can_shift:
                raise ShiftUnsupported(
                    "state can't be moved: llama.cpp says that this memory can't be shifted"
                )
            probe(context)
        except BaseException:
            self.close()
            raise

    def append_moved(self, seq: int, blob: bytes, source_start: int, start: int, n: int) -> None:
        """Append a stretch to ``seq``, which ends at ``start``: then it ends at ``start + n``.

        ``blob`` is the plain state of the positions [source_start, source_start + n) of any sequence, cut to
        just these. If it was moved before, its keys are rounded once more. No other sequence is touched, and
        the result can be shared and exported at once. Raises StateLayoutUnknown, StateImportFailed; ``seq`` is
        then as before.
        """
        assert seq != self._context.tmp
        if not (n > 0 and source_start >= 0 and 0 <= start <= self._context.n_ctx - n):
            raise StateImportFailed(
                f"{n} tokens can't go from position {source_start} to {start} of {self._context.n_ctx}"
            )
        if self._context.length(seq) != start:
            raise StateImportFailed(f"sequence {seq} ends at {self._context.length(seq)}, not at {start}")
        pieces = self._turned(blob, source_start, start, n)
        whole = start
        try:
            for piece, size in pieces:
                self._context.import_range(seq, piece, whole, whole + size)
                whole += size
            self._context.verify(seq, start + n)
        except BaseException:
            self._context.truncate(seq, start)
            raise

    def _turned(self, blob: bytes, source_start: int, start: int, n: int) -> list[tuple[bytes, int]]:
        stateblob.check(blob, source_start, n)
        pieces, size = [], self._scratch.room
        for at in range(0, n, size):
            piece, blob = stateblob.cut(blob, size) if n - at > size else (blob, b"")
            held = min(size, n - at)
            pieces.append((self._scratch.turn(piece, source_start + at, start + at, held), held))
        return pieces

    def close(self) -> None:
        """Free the small context. Safe to call again."""
        self._scratch.close()

    def __enter__(self) -> Shifter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def probe(context: Context) -> None:
    """See by a small reading that keys turned to a position are those that are read there.

    A few tokens are read at 0 and far from it. As far as positions are a rotation, nothing but the keys' angle
    tells the two apart, in no layer; where they are something else, or are turned wrongly, this shows it,
    whatever the metadata says. Raises ShiftUnsupported.
    """
    tokens = [context.n_vocab * (i + 1) // (_PROBE_TOKENS + 2) for i in range(_PROBE_TOKENS)]
    scratch = _Scratch(context, 256, type_k="f16", type_v="f16")
    try:
        here = scratch.read(tokens, 0)
        there = scratch.read(tokens, _PROBE_AT)
        turned = scratch.turn(here, 0, _PROBE_AT, len(tokens))
    finally:
        scratch.close()
    first, *deeper = _apart(turned, there)
    if not (first <= _FIRST_BOUND and max(deeper, default=0.0) <= _BOUND):
        raise ShiftUnsupported(
            "state can't be moved: what llama.cpp turned is off from what is read at the new place, by "
            f"{first:.1%} in the first layer and at most {max(deeper, default=0.0):.0%} in others"
        )


def _apart(a: bytes, b: bytes) -> list[float]:
    """How far two f16 states are from each other, part by part, relative to the second's size."""
    layout, found = stateblob.layout(b), []
    for part in layout.parts:
        x, y = (
            np.frombuffer(blob, np.float16, part.size(layout.cells) // 2, part.offset).astype(np.float64)
            for blob in (a, b)
        )
        found.append(float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-9)))
    return found


class _Scratch:
    """A context for nothing else than turning keys."""

    def __init__(self, like: Context, cells: int, **changes: str) -> None:
        params = replace(like.params, n_ctx=cells, n_seq_max=2, n_batch=_PROBE_TOKENS, **changes)  # type: ignore[arg-type]
        assert params.n_batch >= _BATCH
        self._context = Context(like.model, params)
        self._batch = Batch(_PROBE_TOKENS)
        self._memory = lib.llama_get_memory(self._context.handle)
        self.room = self._context.n_ctx - 1

    @property
    def can_shift(self) -> bool:
        return bool(lib.llama_memory_can_shift(self._memory))

    def turn(self, blob: bytes, source_start: int, start: int, n: int) -> bytes:
        """The state of [source_start, source_start + n) as it is at [start, start + n)."""
        if start == source_start:
            return blob
        context = self._context
        context.clear()
        context.import_sequence(_STRETCH, blob, source_start + n)
        lib.llama_memory_seq_add(self._memory, _STRETCH, source_start, source_start + n, start - source_start)
        self._batch.clear()
        self._batch.add([0], 0, _EXTRA, logits_last=False)
        context.decode(self._batch)  # turns the keys
        turned = stateblob.in_order(context.export_sequence(_STRETCH, start + n))
        stateblob.check(turned, start, n)
        return turned

    def read(self, tokens: list[int], start: int) -> bytes:
        """The state of tokens read at [start, start + len(tokens)) with nothing before them."""
        context = self._context
        context.clear()
        self._batch.clear()
        self._batch.add(tokens, start, _STRETCH, logits_last=False)
        context.decode(self._batch)
        return stateblob.in_order(context.export_sequence(_STRETCH, start + len(tokens)))

    def close(self) -> None:
        self._batch.close()
        self._context.close()
