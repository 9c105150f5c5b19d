"""One llama_context: decoding, sequences, and the state of a range as bytes. One thread only."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from onceread.native import adapter, logs
from onceread.native.adapter import Adapter
from onceread.native.batch import Batch
from onceread.native.errors import (
    BatchInvalid,
    ContextInvalid,
    ContextTooLarge,
    CutImpossible,
    DecodeAborted,
    DecodeFailed,
    ModelUnsupported,
    NoRoom,
    SequenceIdInvalid,
    SequenceWrong,
    StateExportFailed,
    StateImportFailed,
)
from onceread.native.library import lib
from onceread.native.model import Model
from onceread.native.rope import AS_TRAINED, Rope

MAX_SEQUENCES = 256  # llama.cpp's own limit; ids from here on abort the process

KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "iq4_nl": 20,
}
# Bytes of one cached number, the scales of quantized blocks included.
KV_TYPE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
    "iq4_nl": 18 / 32,
}
_PARTIAL_ONLY = 1  # llama.cpp's flag for the part of a state that can't be cut
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True, slots=True)
class ContextParams:
    """What a context is made with. Sizes in tokens (cells)."""

    n_ctx: int
    n_seq_max: int
    n_batch: int = 512
    n_ubatch: int | None = None  # tokens computed at a time, of a batch; None = all of it
    n_threads: int = 1
    n_threads_batch: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    offload_kqv: bool = True
    swa_full: bool = False  # keep windows as long as the context? It takes memory and makes nothing possible
    rope: Rope = AS_TRAINED
    adapter: Adapter | None = None


def decode(context: Any, batch: Batch) -> None:
    """llama_decode on a context's handle. Releases the GIL meanwhile.

    Raises NoRoom, DecodeAborted, BatchInvalid, DecodeFailed by llama.cpp's return code.
    """
    rc = lib.llama_decode(context, batch.raw)
    if rc == 0:
        return
    if rc == 1:
        raise NoRoom(f"no free cells for a batch of {batch.n} tokens")
    if rc == 2:
        raise DecodeAborted("llama_decode was aborted")
    reason = logs.last_error() or "no reason given"
    if rc == -1:
        raise BatchInvalid(f"llama_decode refused the batch: {reason}")
    raise DecodeFailed(f"llama_decode failed with {rc}: {reason}")


class Context:
    """A unified KV cache shared by ``n_seq_max`` sequences; the last id is reserved as scratch (``tmp``)."""

    def __init__(self, model: Model, params: ContextParams) -> None:
        if not 2 <= params.n_seq_max <= MAX_SEQUENCES:
            raise SequenceIdInvalid(
                f"n_seq_max must be between 2 and {MAX_SEQUENCES}, not {params.n_seq_max}"
            )
        if params.n_ubatch is not None and params.n_ubatch < 1:
            raise ContextInvalid(f"n_ubatch must be at least 1, not {params.n_ubatch}")
        if model.params.vocab_only:
            raise ContextInvalid(
                f"{model.path.name} was loaded without its weights (vocab_only): it can't compute"
            )
        p = lib.llama_context_default_params()
        p.n_ctx = params.n_ctx
        p.n_batch = max(params.n_batch, params.n_seq_max)  # llama.cpp aborts the process where it is less
        p.n_ubatch = min(p.n_batch, params.n_ubatch or p.n_batch)
        params.rope.apply(p)
        p.n_seq_max = params.n_seq_max
        p.n_threads = params.n_threads
        p.n_threads_batch = params.n_threads_batch
        p.type_k = KV_TYPES[params.type_k]
        p.type_v = KV_TYPES[params.type_v]
        p.flash_attn_type = FLASH_ATTN[params.flash_attn]
        p.offload_kqv = params.offload_kqv
        p.kv_unified = True  # streams abort or mix conversations when a range is copied
        p.swa_full = params.swa_full
        p.no_perf = True
        logs.forget_errors()
        self._adapter: Any = None
        self._c: Any = lib.llama_init_from_model(model.handle, p)
        if not self._c:
            reason = logs.last_error() or "no reason given"
            raise ContextTooLarge(
                f"a context of {params.n_ctx} tokens could not be made ({reason}); try a smaller --ctx-size"
            )
        self._memory: Any = lib.llama_get_memory(self._c)
        if not self._memory:
            self.close()
            raise ModelUnsupported(
                f"{model.path.name} is an embedding model and can't write text; give it by --embedding-model"
            )
        if params.adapter is not None:
            try:
                self._adapter = adapter.attach(model.handle, self._c, params.adapter)
            except BaseException:
                self.close()
                raise
        self.model = model
        self.params = params
        self.n_ctx: int = lib.llama_n_ctx(self._c)  # rounded up by llama.cpp
        self.n_batch: int = lib.llama_n_batch(self._c)
        self.n_seq_max = params.n_seq_max
        self.tmp = params.n_seq_max - 1
        self.n_vocab = model.vocab.size
        self.window: int = lib.llama_model_n_swa(
            model.handle
        )  # tokens of a sliding window, 0 if there is none
        self.has_attention = not lib.llama_model_is_recurrent(model.handle)

    # -- decoding ----------------------------------------------------------

    def decode(self, batch: Batch) -> None:
        """Compute a batch, as :func:`decode`."""
        decode(self.handle, batch)

    @property
    def handle(self) -> Any:
        """The C pointer, for samplers."""
        assert self._c, "the context is closed"
        return self._c

    def logits(self, index: int, *, copy: bool = True) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Shape (n_vocab,): the logits at a batch index that asked for them; without ``copy`` until the next decode."""
        pointer = lib.llama_get_logits_ith(self.handle, index)
        if not pointer:
            raise DecodeFailed(f"no logits at batch index {index}")
        view = np.ctypeslib.as_array(pointer, (self.n_vocab,))
        return view.copy() if copy else view

    # -- sequences ---------------------------------------------------------

    def share(self, src: int, dst: int, start: int, end: int) -> None:
        """Let ``dst`` own the cells of ``src`` at positions [start, end) too. Copies no data."""
        self._check(src)
        self._check(dst)
        assert src != dst
        assert 0 <= start < end
        lib.llama_memory_seq_cp(self._memory, src, dst, start, end)

    def share_all(self, src: int, dst: int) -> None:
        """Let ``dst`` own all that ``src`` has, recurrent state included."""
        self._check(src)
        self._check(dst)
        assert src != dst
        lib.llama_memory_seq_cp(self._memory, src, dst, -1, -1)

    def drop(self, seq: int) -> None:
        """Forget a sequence. Cells that others share stay."""
        self._check(seq)
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def truncate(self, seq: int, length: int) -> None:
        """Keep positions [0, length) of a sequence. Raises CutImpossible where the memory can't."""
        self._check(seq)
        if not lib.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise CutImpossible(f"sequence {seq} can't be cut at {length}")

    def length(self, seq: int) -> int:
        """Positions held by a sequence that starts at 0; 0 if it is empty."""
        self._check(seq)
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def first_position(self, seq: int) -> int:
        """The lowest position a sequence still has, -1 if it is empty."""
        self._check(seq)
        return int(lib.llama_memory_seq_pos_min(self._memory, seq))

    def verify(self, seq: int, length: int) -> None:
        """Raise SequenceWrong unless a sequence holds positions from 0 up to ``length``.

        llama.cpp decodes on a sequence with a hole at its beginning and returns 0.
        """
        first, held = self.first_position(seq), self.length(seq)
        if held != length or first > 0:
            raise SequenceWrong(
                f"sequence {seq} holds positions {first} to {held - 1}, not 0 to {length - 1}"
            )

    def clear(self) -> None:
        """Forget every sequence and zero the memory."""
        lib.llama_memory_clear(self._memory, True)

    # -- state as bytes ----------------------------------------------------

    def export_range(self, seq: int, start: int, end: int) -> bytes:
        """The state of positions [start, end) of a plain-attention sequence, as one blob."""
        self.drop(self.tmp)
        self.share(seq, self.tmp, start, end)
        try:
            return self.export_sequence(self.tmp, end)
        finally:
            self.drop(self.tmp)

    def export_sequence(self, seq: int, length: int) -> bytes:
        """The whole state of a sequence, which must end at ``length``."""
        if self.length(seq) != length:
            raise StateExportFailed(f"sequence {seq} ends at {self.length(seq)}, not at {length}")
        size = lib.llama_state_seq_get_size(self.handle, seq)
        buffer = bytearray(size)
        view = (ctypes.c_uint8 * size).from_buffer(buffer)
        written = lib.llama_state_seq_get_data(self.handle, view, size, seq)
        if written != size or size == 0:
            raise StateExportFailed(f"llama.cpp wrote {written} of {size} bytes of state")
        return bytes(buffer)

    def import_range(self, seq: int, blob: bytes, start: int, end: int) -> None:
        """Append a blob of :meth:`export_range` to a sequence that ends at ``start``, up to ``end``.

        The blob must hold [start, end) or begin before ``start``; what lies before is left out.
        Raises StateImportFailed; ``seq`` is then as it was before.
        """
        if self.length(seq) != start:
            raise StateImportFailed(f"sequence {seq} ends at {self.length(seq)}, not at {start}")
        self.drop(self.tmp)
        try:
            self._load(self.tmp, blob)
            if self.length(self.tmp) < end or self.first_position(self.tmp) > start:
                raise StateImportFailed("the blob does not hold the range it was kept for")
            self.share(self.tmp, seq, start, end)
        finally:
            self.drop(self.tmp)
        if self.length(seq) != end:
            raise StateImportFailed(f"sequence {seq} ends at {self.length(seq)} after a load up to {end}")

    def import_sequence(self, seq: int, blob: bytes, length: int) -> None:
        """Replace a sequence by a blob of :meth:`export_sequence`. On failure it is empty."""
        self.drop(seq)
        self._load(seq, blob)
        if self.length(seq) != length:
            self.drop(seq)
            raise StateImportFailed(f"the blob does not end at {length}")

    # What follows serves checkpoints.py, which knows how the two halves of a state belong together.

    def state_size(self, seq: int, *, partial: bool) -> int:
        """Bytes of a sequence's state, or of the part of it that can't be cut. Computes no data."""
        self._check(seq)
        return int(lib.llama_state_seq_get_size_ext(self.handle, seq, _PARTIAL_ONLY if partial else 0))

    def export_state(self, seq: int, *, partial: bool) -> bytearray:
        """The state of a sequence, or the part of it that can't be cut, whatever it is. Raises StateExportFailed."""
        size = self.state_size(seq, partial=partial)
        buffer = bytearray(size)
        view = (ctypes.c_uint8 * size).from_buffer(buffer)
        flags = _PARTIAL_ONLY if partial else 0
        written = lib.llama_state_seq_get_data_ext(self.handle, view, size, seq, flags)
        if written != size or size == 0:
            raise StateExportFailed(f"llama.cpp wrote {written} of {size} bytes of state")
        return buffer

    def import_state(self, seq: int, blob: bytes, *, partial: bool) -> None:
        """Put a state, or the part that can't be cut, into a sequence. On failure the sequence is empty.

        Checks only that llama.cpp took all of it. Raises StateImportFailed.
        """
        self._check(seq)
        self._load(seq, blob, partial=partial)

    def _load(self, seq: int, blob: bytes, *, partial: bool = False) -> None:
        if not blob:
            self.drop(seq)
            raise StateImportFailed("the blob is empty")
        # set_data reads only: a bytes object's own buffer serves, without a copy.
        pointer = ctypes.cast(ctypes.c_char_p(blob), ctypes.POINTER(ctypes.c_uint8))
        flags = _PARTIAL_ONLY if partial else 0
        read = lib.llama_state_seq_set_data_ext(self.handle, pointer, len(blob), seq, flags)
        if read != len(blob):
            self.drop(seq)
            raise StateImportFailed(f"llama.cpp took {read} of {len(blob)} bytes of state")

    # -- life --------------------------------------------------------------

    def close(self) -> None:
        """Free the context. Safe to call again."""
        if self._c:
            lib.llama_free(self._c)
            self._c = None
            self._memory = None
        if self._adapter:
            adapter.free(self._adapter)
            self._adapter = None

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise SequenceIdInvalid(f"sequence {seq} is outside [0, {self.n_seq_max})")
