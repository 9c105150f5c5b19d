"""A server for tests of `onceread chat`: no model, replies that say what was asked."""

from __future__ import annotations

import re

from tests.server.fakes import FakeEngine, FakeVocab, until_cancelled

from onceread.engine.errors import EngineFailed
from onceread.engine.request import (
    CachedBySource,
    DoneEvent,
    FinishEvent,
    RequestHandle,
    TextEvent,
    Usage,
)

SHOUT = "\x1b[31mred\x1b]0;title\x07\x9b2J\rback\x08"


def last_said(handle: RequestHandle) -> str:
    """The user's last message in a ChatML prompt."""
    prompt = FakeVocab().shown(list(handle.request.prompt)).decode()
    return re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)[-1]


def answer(engine: FakeEngine, handle: RequestHandle) -> None:
    """`forever` goes on until it is stopped, `break` fails, `shout` has escape sequences, all else is repeated."""
    said = last_said(handle) if 257 in handle.request.prompt else "raw"
    if "forever" in said:
        until_cancelled(engine, handle)
        handle.push(DoneEvent(Usage(1, 1, CachedBySource(), 1, 0.0, 0.1, 0.1)))
        return
    if "break" in said:
        handle.push(TextEvent(0, "half a ", 1))
        handle.push(
            DoneEvent(Usage(1, 1, CachedBySource(), 1, 0.0, 0.1, 0.1), EngineFailed("the engine broke"))
        )
        return
    number = len(engine.handles)
    for text in (f"reply {number} ", SHOUT if "shout" in said else f"to {said}"):
        handle.push(TextEvent(0, text, 1))
    handle.push(FinishEvent(0, "stop"))
    n = len(handle.request.prompt)
    cached = CachedBySource(context=n - 5, memory=3)
    handle.push(DoneEvent(Usage(n, 2, cached, 2, 0.0, 0.25, 0.5)))
