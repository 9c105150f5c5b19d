"""The store's numbers, for faces that must answer even while the disk does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceread.cache.contract import CacheStats, TierStats
from onceread.server.errors import ApiError
from onceread.server.threads import wait_in_thread

if TYPE_CHECKING:
    from onceread.engine.engine import Engine

_PATIENCE = 3.0  # seconds


class CacheNumbers:
    """What the store says of itself. Asked on the event loop, answered on a thread: the disk's part may take long."""

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        """``engine`` returns the engine, or None while the model loads."""
        self._engine = engine
        self._asking: asyncio.Future[CacheStats] | None = None

    async def read(self) -> CacheStats:
        """A disk that does not answer is a failed one, and makes nobody wait for long."""
        engine = self._engine()
        if engine is None or engine.store is None:
            return CacheStats()
        if self._asking is None or self._asking.done():  # never two: a dead disk would gather threads
            self._asking = asyncio.ensure_future(wait_in_thread(engine.store.stats))
        asking = self._asking
        await asyncio.wait([asking], timeout=_PATIENCE)
        if asking.done():
            with contextlib.suppress(ApiError):  # too many wait for the disk already, says threads.py
                return asking.result()
        silent = TierStats(state=f"failed: it did not answer in {_PATIENCE:g} s")
        return CacheStats(memory=TierStats(state="ok"), disk=silent)
