"""Threads for what waits for the engine or the disk: it must not take those that tokenize prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

_PATIENT = CapacityLimiter(32)


async def wait_in_thread(work: Callable[[], T], *, leave: bool = False) -> T:
    """The result of ``work``. With ``leave`` whoever is cancelled goes at once, and the thread ends by itself."""
    return await to_thread.run_sync(work, limiter=_PATIENT, abandon_on_cancel=leave)
