"""llama-cpp-python's caches by name. There is always one here; these say how much it may hold, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceread.cache.contract import CacheStats
from onceread.library.errors import InvalidParameter
from onceread.models.home import expanded

_DEFAULT = 2 * 2**30


class LlamaRAMCache:
    """A budget for what is kept in RAM, in bytes (at least 64 MiB)."""

    def __init__(self, capacity_bytes: int = _DEFAULT) -> None:
        self.capacity_bytes = capacity_bytes
        self._stats: Callable[[], CacheStats | None] = lambda: None

    @property
    def cache_size(self) -> int:
        """Bytes that it holds; 0 until a `Llama` has it."""
        stats = self._stats()
        return 0 if stats is None else self._bytes(stats)

    def tiers(self) -> dict[str, Any]:
        """What it comes to for a `Llama`."""
        return {"cache_ram": self.capacity_bytes}

    def attach(self, stats: Callable[[], CacheStats | None]) -> None:
        """A `Llama` has it now: how to ask for what is held."""
        self._stats = stats

    def _bytes(self, stats: CacheStats) -> int:
        return stats.memory.bytes


class LlamaDiskCache(LlamaRAMCache):
    """A directory and a budget for what is kept in it, in bytes (at least 256 MiB). RAM stays in front of it.

    Processes may share a directory, and a server may use it, too; llama-cpp-python's own can't be read.
    """

    def __init__(self, cache_dir: str | Path = ".cache/llama_cache", capacity_bytes: int = _DEFAULT) -> None:
        super().__init__(capacity_bytes)
        self.cache_dir = expanded(cache_dir)

    def tiers(self) -> dict[str, Any]:
        return {"cache_dir": self.cache_dir, "cache_disk": self.capacity_bytes}

    def _bytes(self, stats: CacheStats) -> int:
        return stats.disk.bytes


LlamaCache = LlamaRAMCache

Cache = LlamaRAMCache | type[LlamaRAMCache] | None


def made(cache: Cache) -> LlamaRAMCache | None:
    """The cache that was given, made if only its class was. Raises InvalidParameter for others."""
    if isinstance(cache, type) and issubclass(cache, LlamaRAMCache):
        return cache()
    if cache is None or isinstance(cache, LlamaRAMCache):
        return cache
    raise InvalidParameter(
        "cache: must be onceread's LlamaRAMCache or LlamaDiskCache, or None; others can't hold its state",
        "cache",
    )
