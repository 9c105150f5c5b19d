"""From `Settings` to the configurations of engines."""

from __future__ import annotations

from onceread.engine.config import EngineConfig
from onceread.engine.embedding_config import EmbeddingConfig
from onceread.server.settings import Settings


def engine_config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        batch_size=settings.batch_size,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        flash_attn=settings.flash_attn,
        reuse_moved=settings.reuse_moved,
        exact=settings.exact,
        queue_limit=settings.queue_limit,
        resident_cells=settings.resident_cells,
        cache_ram=settings.cache_ram,
        cache_dir=None if settings.no_disk_cache else settings.cache_dir.expanduser(),
        cache_disk=settings.cache_disk,
    )


def embedding_config(settings: Settings) -> EmbeddingConfig:
    return EmbeddingConfig(
        ctx_size=settings.embedding_ctx_size,
        pooling=settings.embedding_pooling,
        batch_size=settings.batch_size,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        flash_attn=settings.flash_attn,
        queue_limit=settings.queue_limit,
    )
