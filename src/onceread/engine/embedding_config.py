"""How embeddings are computed: what was asked for, and the sizes that follow for a model and this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from onceread.engine.config import default_threads
from onceread.native.context import ContextParams
from onceread.native.embedding import Nature, Pooling
from onceread.native.errors import ContextTooLarge
from onceread.native.model import MemoryKind, Model

_LONGEST = 8192  # tokens of an input, unless more is asked for
_LONGEST_WHOLE = 2048  # where all of it goes into one decode, whose cost grows with the square
_LEAST = 512
_SEQUENCES = 16
_SEQUENCES_CHECKPOINTED = 4  # each costs a whole window or recurrent state, used or not
# llama.cpp reserves room for the logits of every token that it embeds, though nobody reads them: for a
# vocabulary of 250,000 a megabyte a token, and in a model that generates as much again while it computes.
_LOGITS = 128 * 2**20
_LOGITS_WHOLE = 2**30


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Sizes in tokens; None lets the model and the machine decide."""

    ctx_size: int | None = None  # of the context, and so of an input at most
    pooling: Pooling | None = None  # None = what the file says
    unsaid: Pooling = "mean"  # where it says nothing
    batch_size: int = 512
    threads: int | None = None
    threads_batch: int | None = None
    flash_attn: str = "auto"
    queue_limit: int = 256
    # Beside chats a slice takes about this long, as one of another chat's prompt would.
    slice_seconds: float = 0.5
    min_slice: int = 32


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """What one model's embeddings are computed with."""

    params: ContextParams
    pooling: Pooling
    whole: bool  # an input must be in one decode
    fill: int  # tokens of several inputs that are put into one decode
    limit: int  # tokens of one input
    dimensions: int


def embedding_plan(model: Model, nature: Nature, config: EmbeddingConfig) -> EmbeddingPlan:
    """Resolve a configuration for a model. Raises ContextTooLarge, with figures, before llama.cpp is asked."""
    trained = model.n_ctx_train or _LONGEST
    available = psutil.virtual_memory().available
    per_token = model.kv_bytes_per_token() if nature.remembers else 0.0
    logits = 4 * model.vocab.size
    n_ctx = config.ctx_size
    if n_ctx is None:
        longest = min(_LONGEST_WHOLE, _LOGITS_WHOLE // logits) if nature.whole else _LONGEST
        if per_token:
            longest = min(longest, int(available / 8 / per_token))
        n_ctx = max(_LEAST, longest)
    n_ctx = min(n_ctx, trained)  # beyond that some models end the process
    needed = n_ctx * per_token + (n_ctx * logits if nature.whole else 0)
    if needed > available:
        raise ContextTooLarge(
            f"embeddings of {n_ctx} tokens take {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB are free; "
            "give a smaller --embedding-ctx-size"
        )
    fill = min(config.batch_size, n_ctx, max(config.min_slice, _LOGITS // logits))
    plain = model.memory_kind is MemoryKind.PLAIN
    threads = config.threads or default_threads()
    params = ContextParams(
        n_ctx=n_ctx,
        n_seq_max=_SEQUENCES if plain or not nature.remembers else _SEQUENCES_CHECKPOINTED,
        n_batch=n_ctx if nature.whole else fill,
        n_threads=threads,
        n_threads_batch=config.threads_batch or threads,
        flash_attn=config.flash_attn,
    )
    pooling = config.pooling or nature.pooling or config.unsaid
    return EmbeddingPlan(params, pooling, nature.whole, fill, n_ctx, nature.dimensions)
