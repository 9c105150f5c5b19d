"""From `Settings` to an engine's configuration."""

from __future__ import annotations

from onceread.engine.config import EngineConfig
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
