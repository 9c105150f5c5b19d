"""Threads for what waits for the engine or the disk.

Not the pool that tokenizes prompts, whose places they would take, and whose threads the process waits for
when it ends: a dead disk must hold up neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from onceread.server.errors import unavailable

T = TypeVar("T")

_MOST = 64
_free = threading.BoundedSemaphore(_MOST)


async def wait_in_thread(work: Callable[[], T]) -> T:
    """The result of ``work``. Whoever is cancelled goes at once; the thread ends when ``work`` does.

    Raises a 503 if too many wait already.
    """
    if not _free.acquire(blocking=False):
        raise unavailable(f"{_MOST} requests wait for the cache already; try again soon.", "cache_busy", 1)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            told = partial(_finish, done, work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            told = partial(_fail, done, error)
        finally:
            _free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(told)

    threading.Thread(target=run, name="onceread-waiting", daemon=True).start()
    return await done


def _finish(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
