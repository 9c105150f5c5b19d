"""What Prometheus sees: the engine's counters, read at each scrape, and the times of HTTP requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onceread.cache.contract import CacheStats
from onceread.server.cache_metrics import CacheCollector

if TYPE_CHECKING:
    from onceread.engine.embeddings import EmbeddingEngine
    from onceread.engine.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "POST", "OPTIONS", "HEAD", "PUT", "PATCH", "DELETE"})
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_HELP = {
    "requests_total": "Requests that the engine took on",
    "requests_cancelled": "Requests whose client went away",
    "requests_failed": "Requests that ended in an error",
    "prompt_tokens_total": "Prompt tokens of all requests",
    "prompt_evaluated_total": "Prompt tokens that were computed, not reused",
    "prompt_reevaluated_total": "Prompt tokens computed again for a request that had read them before",
    "cached_context_total": "Prompt tokens that were reused from the context",
    "cached_memory_total": "Prompt tokens that were loaded from RAM",
    "cached_disk_total": "Prompt tokens that were loaded from disk",
    "cached_moved_total": "Prompt tokens that were reused from other positions",
    "completion_tokens_total": "Tokens written",
    "decode_calls_total": "Calls of llama_decode",
    "set_aside_total": "Times that a request was moved out of the context",
    "evictions_total": "Finished sequences that were dropped from the context",
    "running": "Requests being read or answered",
    "waiting": "Requests in the queue",
    "set_aside": "Requests moved out of the context until there is room",
    "residents": "Finished sequences kept in the context",
    "cells_used": "Cells of the context in use",
    "cells_total": "Cells of the context",
    "sequences_used": "Sequences in use",
    "sequences_total": "Sequences that the context can hold",
    "embedding_requests_total": "Requests for embeddings that were answered",
    "embedding_tokens_total": "Tokens of the inputs that were embedded",
    "embedding_waiting": "Requests for embeddings in the queue",
}
_COUNTERS = frozenset({"requests_cancelled", "requests_failed"})  # beside all that end in _total
_GAUGES = frozenset({"cells_total", "sequences_total"})


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        embeddings: Callable[[], EmbeddingEngine | None] = lambda: None,
    ) -> None:
        """``engine`` and ``embeddings`` return None while the model loads."""
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.registry.register(_EngineCollector(embeddings))
        self._requests = Counter(
            "onceread_http_requests", "HTTP requests", ["route", "method", "status"], registry=self.registry
        )
        self._duration = Histogram(
            "onceread_http_request_duration_seconds",
            "Time from a request's first byte to its answer's last",
            ["route", "method"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_token = Histogram(
            "onceread_time_to_first_token_seconds",
            "Time from a request's body to its first token",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def request_done(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"  # a client can invent methods without end
        self._requests.labels(route, method, str(status)).inc()
        self._duration.labels(route, method).observe(seconds)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def page(self, cache: CacheStats | None = None) -> bytes:
        """Everything in Prometheus' text format."""
        page = generate_latest(self.registry)
        if cache is not None:
            once = CollectorRegistry()
            once.register(CacheCollector(cache))
            page += generate_latest(once)
        return page


class _EngineCollector(Collector):
    def __init__(self, engine: Callable[[], Engine | EmbeddingEngine | None]) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []  # nothing is known before the engine is

    def collect(self) -> Iterator[Metric]:
        engine = self._engine()
        if engine is None:
            return
        stats = engine.stats()
        for field in dataclasses.fields(stats):
            value = getattr(stats, field.name)
            if not isinstance(value, int | float):
                continue
            name = "onceread_" + field.name
            says = _HELP.get(field.name, field.name.replace("_", " "))
            is_total = field.name.endswith("_total") and field.name not in _GAUGES
            if is_total or field.name in _COUNTERS:
                yield CounterMetricFamily(name.removesuffix("_total"), says, value=value)
            else:
                yield GaugeMetricFamily(name, says, value=value)


router = APIRouter(tags=["Server"])


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def read_metrics(request: Request) -> PlainTextResponse:
    """Counters and gauges of the engine, and times of requests, in Prometheus' text format."""
    state = request.app.state.onceread
    metrics: Metrics = state.metrics
    engine: Engine | None = state.engine
    cache = await state.cache.read() if engine is not None else None
    return PlainTextResponse(metrics.page(cache), media_type=CONTENT_TYPE)
