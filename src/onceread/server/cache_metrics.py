"""The store's numbers as Prometheus has them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onceread.cache.contract import CacheStats

_TIERS = ("memory", "disk", "shared")
_BY_TIER = {
    # field of TierStats: (name, help)
    "budget": ("budget_bytes", "What a tier of the cache may take"),
    "bytes": ("bytes", "What a tier of the cache takes"),
    "pinned_bytes": ("pinned_bytes", "What pinned chunks take of it"),
    "chunks": ("chunks", "Chunks in a tier of the cache"),
    "checkpoints": ("checkpoints", "Checkpoints in a tier of the cache"),
    "checkpoint_bytes": ("checkpoint_bytes", "What checkpoints take of it"),
    "tokens": ("tokens", "Tokens in a tier of the cache"),
    "hit_tokens_total": ("hit_tokens_total", "Prompt tokens that came from a tier of the cache"),
    "evictions_total": ("evictions_total", "Chunks that gave way to others"),
    "damaged_total": ("damaged_total", "Chunks that were there and could not be used"),
}
_WHOLE = {
    "unwritten_bytes": ("unwritten_bytes", "Bytes in RAM that are to be written to disk"),
    "oldest_unwritten_s": ("oldest_unwritten_seconds", "How long the oldest of them has waited"),
    "exported_chunks_total": ("exported_chunks_total", "Chunks that were copied from the context"),
    "refused_chunks_total": ("refused_chunks_total", "Chunks for which there was no room"),
    "split_chunks_total": ("split_chunks_total", "Chunks that were cut where two paths part"),
    "exported_checkpoints_total": (
        "exported_checkpoints_total",
        "Checkpoints that were copied from the context",
    ),
    "refused_checkpoints_total": (
        "refused_checkpoints_total",
        "Checkpoints for which there was no room in RAM",
    ),
}


class CacheCollector(Collector):
    """Everything in ``stats``; a tier's numbers carry its name as the label ``tier``."""

    def __init__(self, stats: CacheStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "onceread_cache_up", "1 where a tier works, 0 where it is off or failed", labels=["tier"]
        )
        for tier in _TIERS:
            up.add_metric([tier], float(getattr(self._stats, tier).state == "ok"))
        yield up
        for field, (name, says) in _BY_TIER.items():
            family = _family(name, says, labels=["tier"])
            for tier in _TIERS:
                family.add_metric([tier], getattr(getattr(self._stats, tier), field))
            yield family
        for field, (name, says) in _WHOLE.items():
            family = _family(name, says, labels=[])
            family.add_metric([], getattr(self._stats, field))
            yield family


def _family(name: str, says: str, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    name = "onceread_cache_" + name
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), says, labels=labels)
    return GaugeMetricFamily(name, says, labels=labels)
