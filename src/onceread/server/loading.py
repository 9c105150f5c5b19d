"""From settings to engines that run, for whoever answers: the server, the library, the terminal."""

from __future__ import annotations

from onceread.engine.config import EngineConfig
from onceread.engine.embedding_config import EmbeddingConfig
from onceread.engine.embeddings import EmbeddingEngine
from onceread.engine.engine import Engine
from onceread.models.home import expanded
from onceread.native.model import Model
from onceread.server.settings import Settings


def engine_config(settings: Settings) -> EngineConfig:
    """How the engine that writes is made."""
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
        cache_dir=None if settings.no_disk_cache else expanded(settings.cache_dir),
        cache_disk=settings.cache_disk,
    )


def embedding_config(settings: Settings) -> EmbeddingConfig:
    """How the engine that embeds is made."""
    return EmbeddingConfig(
        ctx_size=settings.embedding_ctx_size,
        pooling=settings.embedding_pooling,
        batch_size=settings.batch_size,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        flash_attn=settings.flash_attn,
        queue_limit=settings.queue_limit,
    )


def start_engines(
    model: Model,
    config: EngineConfig,
    embedding: EmbeddingConfig,
    embedding_model: Model | None = None,
    *,
    start: bool = True,
) -> tuple[Engine, EmbeddingEngine]:
    """The engine that writes, and beside it the one that embeds, by ``embedding_model`` if it has its own.

    With ``start`` False the first is left to be started when it is needed. What embeds
    with the same model makes its context at the first request. Raises what making a context raised;
    nothing runs then.
    """
    engine = Engine(model, config)
    embeddings = EmbeddingEngine(
        embedding_model or model, embedding, engine.turns, lambda: engine.stats().running
    )
    try:
        if embedding_model is not None:
            embeddings.start()  # what is wrong with it is told now
        if start:
            engine.start()
    except BaseException:
        embeddings.close(0)
        raise
    return engine, embeddings
