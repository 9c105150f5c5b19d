"""What an engine is made with, the defaults that are sized to the machine, and the numbers it reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from onceread.engine.attention import choose_flash_attn, choose_micro_batch
from onceread.engine.defaults import default_threads as default_threads
from onceread.native.adapter import Adapter
from onceread.native.context import KV_TYPE_BYTES, ContextParams
from onceread.native.errors import ContextTooLarge
from onceread.native.model import MemoryKind, Model
from onceread.native.rope import AS_TRAINED, Rope

MAX_RESIDENTS = 32
MAX_RESIDENTS_CHECKPOINTED = 2  # each costs a whole window or recurrent state, used or not
EngineState = Literal["loading", "ok", "failed"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes in tokens; None lets the engine choose by the model and the machine."""

    ctx_size: int | None = None  # cells for all sequences together
    parallel: int = 4  # sequences read or decoded at a time
    threads: int | None = None
    threads_batch: int | None = None
    batch_size: int = 512
    micro_batch: int | None = None  # tokens of a batch that are computed at a time
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    rope: Rope = AS_TRAINED
    adapter: Adapter | None = None  # a LoRA
    queue_limit: int = 256
    max_residents: int = MAX_RESIDENTS
    resident_cells: int = 2048  # what finished sequences may keep in the context once the store has them
    # The store behind the context. Sizes in bytes.
    cache_ram: int | None = 0  # 0 = no store; None = a quarter of the RAM that is free beside the context
    cache_dir: Path | None = None  # None = nothing on disk
    cache_disk: int | None = None  # None = 20 GiB or a tenth of the free space, whichever is less
    io_timeout: float = 10.0  # seconds for a chunk from disk before it counts as a miss
    offload_kqv: bool = True
    # A slice of prefill beside running streams takes about this long, so that they stall no longer.
    slice_seconds: float = 0.5
    min_slice: int = 32
    reuse_moved: bool = False  # requests may ask for it: then it must be possible
    exact: bool = False  # replies from cache bit for bit as without it: see exact.py
    # Hold the account of cells against every sequence after each plan (tests and debugging).
    check: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the start, and how things stand now."""

    requests_total: int = 0
    requests_cancelled: int = 0
    requests_failed: int = 0
    prompt_tokens_total: int = 0
    prompt_evaluated_total: int = 0  # with the cached_*_total it adds up to prompt_tokens_total
    prompt_reevaluated_total: int = 0  # beyond that: read again for the same request
    cached_context_total: int = 0
    cached_memory_total: int = 0
    cached_disk_total: int = 0
    cached_moved_total: int = 0
    completion_tokens_total: int = 0
    decode_calls_total: int = 0
    set_aside_total: int = 0
    evictions_total: int = 0
    running: int = 0
    waiting: int = 0
    set_aside: int = 0
    residents: int = 0
    cells_used: int = 0
    cells_total: int = 0
    sequences_used: int = 0
    sequences_total: int = 0


def context_params(model: Model, config: EngineConfig) -> ContextParams:
    """Resolve a configuration for a model. Raises ContextTooLarge, with figures, before llama.cpp is asked."""
    per_token = model.kv_bytes_per_token(
        KV_TYPE_BYTES[config.cache_type_k], KV_TYPE_BYTES[config.cache_type_v]
    )
    available = psutil.virtual_memory().available
    n_ctx = config.ctx_size
    if n_ctx is None:
        n_ctx = min(4 * model.n_ctx_train, int(available / 4 / per_token))
        n_ctx = max(512, n_ctx // 256 * 256)
    needed = int(n_ctx * per_token)
    if needed > available:
        raise ContextTooLarge(
            f"a context of {n_ctx} tokens takes {needed / 2**30:.1f} GiB and {available / 2**30:.1f} GiB are free; "
            f"give a smaller --ctx-size (at most {int(available * 0.8 / per_token)}) or --cache-type-k/v q8_0"
        )
    threads = config.threads or default_threads()
    residents = config.max_residents
    if model.memory_kind is not MemoryKind.PLAIN:
        residents = min(residents, MAX_RESIDENTS_CHECKPOINTED)
    n_batch = min(config.batch_size, n_ctx)
    stored = config.cache_ram != 0 or config.cache_dir is not None
    flash_attn = choose_flash_attn(model, config.flash_attn, config.cache_type_v, stored=stored)
    return ContextParams(
        n_ctx=n_ctx,
        n_seq_max=config.parallel + residents + 1,
        n_batch=n_batch,
        n_threads=threads,
        n_threads_batch=config.threads_batch or threads,
        type_k=config.cache_type_k,
        type_v=config.cache_type_v,
        flash_attn=flash_attn,
        offload_kqv=config.offload_kqv,
        n_ubatch=config.micro_batch or choose_micro_batch(model, flash_attn, n_ctx, n_batch),
        rope=config.rope,
        adapter=config.adapter,
    )
