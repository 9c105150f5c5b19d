"""Waiting on threads of our own: results, errors, who leaves, and how many may wait."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onceread.server import threads
from onceread.server.errors import ApiError
from onceread.server.threads import wait_in_thread


def test_results_and_errors_come_back() -> None:
    def fail() -> None:
        raise KeyError("why")

    assert asyncio.run(wait_in_thread(lambda: 5)) == 5
    with pytest.raises(KeyError, match="why"):
        asyncio.run(wait_in_thread(fail))


def test_nobody_is_held_up_by_what_never_ends() -> None:
    never = threading.Event()

    async def leave() -> None:
        await asyncio.wait_for(wait_in_thread(never.wait), 0.05)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(leave())  # which also waits for the loop's own threads
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "onceread-waiting"]
    assert stuck.daemon
    never.set()
    stuck.join(5)


def test_too_many_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_free", threading.BoundedSemaphore(2))
    go_on = threading.Event()

    async def three() -> None:
        waiting = [asyncio.ensure_future(wait_in_thread(lambda: go_on.wait(10))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await wait_in_thread(lambda: True)
        assert (caught.value.status, caught.value.code) == (503, "cache_busy")
        go_on.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await wait_in_thread(lambda: 1) == 1

    asyncio.run(three())
