"""One llama_context that gives a vector for each token instead of predictions. One thread only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

import numpy as np

from onceread.native import logs
from onceread.native.batch import Batch
from onceread.native.context import FLASH_ATTN, KV_TYPES, ContextParams, decode
from onceread.native.errors import ContextTooLarge, DecodeFailed, ModelUnsupported
from onceread.native.library import lib
from onceread.native.model import Model

# Shape (dimensions,), or (tokens, dimensions) where nothing is pooled.
Vector = np.ndarray[Any, np.dtype[np.float32]]
Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Pooling = Literal["mean", "cls", "last", "none"]  # with none every token keeps its own

# llama.cpp's numbers. Files that say "none" leave it to whoever uses them.
_POOLINGS: dict[str, Pooling] = {"1": "mean", "2": "cls", "3": "last"}
_RANK = "4"
_PROBE = ContextParams(n_ctx=64, n_seq_max=1, n_batch=16)


@dataclass(frozen=True, slots=True)
class Nature:
    """What must be known of a model before a context for embeddings is sized."""

    pooling: Pooling | None  # what the file says; None if it says nothing
    whole: bool  # every token sees those after it: an input can't be read in parts
    remembers: bool  # there is a memory of what was read, which takes room
    dimensions: int


def nature_of(model: Model) -> Nature:
    """Ask llama.cpp by a tiny context. Raises ModelUnsupported for models that rank."""
    said = model.metadata.get(f"{model.architecture}.pooling_type", "")
    if said == _RANK:
        raise ModelUnsupported(
            f"{model.name} is a reranker: it gives scores for pairs of texts, no embeddings"
        )
    with EmbeddingContext(model, _PROBE) as probe:
        return Nature(_POOLINGS.get(said), probe.whole, probe.remembers, probe.dimensions)


class EmbeddingContext:
    """Reads texts, each in a sequence of its own, and gives llama.cpp's last layer for every token.

    Pooling is left to the caller, so that an input can be longer than a batch. Where ``whole`` is true it
    can't: then a decode must hold an input from its first token to its last.
    """

    def __init__(self, model: Model, params: ContextParams) -> None:
        p = lib.llama_context_default_params()
        p.n_ctx = params.n_ctx
        p.n_batch = p.n_ubatch = params.n_batch
        p.n_seq_max = params.n_seq_max
        p.n_threads = params.n_threads
        p.n_threads_batch = params.n_threads_batch
        p.type_k = KV_TYPES[params.type_k]
        p.type_v = KV_TYPES[params.type_v]
        p.flash_attn_type = FLASH_ATTN[params.flash_attn]
        p.offload_kqv = params.offload_kqv
        p.kv_unified = True
        p.no_perf = True
        p.embeddings = True
        p.pooling_type = lib.LLAMA_POOLING_TYPE_NONE
        logs.forget_errors()
        self._c: Any = lib.llama_init_from_model(model.handle, p)
        if not self._c:
            reason = logs.last_error() or "no reason given"
            raise ContextTooLarge(
                f"a context for embeddings of {params.n_ctx} tokens could not be made ({reason}); "
                "try a smaller --embedding-ctx-size"
            )
        self._memory: Any = lib.llama_get_memory(self._c)
        self.params = replace(params, n_batch=int(lib.llama_n_batch(self._c)))
        self.remembers = bool(self._memory)
        self.whole = not self.remembers or not lib.llama_get_causal_attn(self._c)
        self.dimensions: int = lib.llama_model_n_embd_out(model.handle)

    def decode(self, batch: Batch) -> Vectors:
        """Compute a batch: a vector for each of its tokens, a copy. Releases the GIL meanwhile.

        Raises as `Context.decode` does.
        """
        assert self._c, "the context is closed"
        # Beyond this llama.cpp does not fail but end the process.
        assert 0 < batch.n <= self.params.n_batch
        decode(self._c, batch)
        pointer = lib.llama_get_embeddings(self._c)
        if not pointer:
            raise DecodeFailed("llama.cpp computed no embeddings")
        return np.ctypeslib.as_array(pointer, (batch.n, self.dimensions)).copy()

    def clear(self) -> None:
        """Forget what was read."""
        if self._memory:
            lib.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free the context. Safe to call again."""
        if self._c:
            lib.llama_free(self._c)
            self._c = None
            self._memory = None

    def __enter__(self) -> EmbeddingContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
