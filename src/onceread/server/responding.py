"""The course of every completion request: submit, wait, answer whole or as a stream, stop if nobody waits."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from onceread.engine.request import Completed, Event
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering, until_disconnect
from onceread.server.body import StreamedRequest, ignored_warning
from onceread.server.errors import ApiError
from onceread.server.event_stream import DONE, EventStream, openai_error, sse


async def respond(
    request: Request,
    body: StreamedRequest,
    answering: Answering,
    prepare: Callable[[], Sequence[EngineRequest]],
    *,
    chunks: Callable[[], AsyncIterator[bytes]],
    whole: Callable[[list[Completed]], Any | Awaitable[Any]],
    headers: Callable[[], Mapping[str, str]] | None = None,
    begins_within: float | None = None,
    end: bytes = DONE,
    failed: Callable[[ApiError], bytes] = openai_error,
    media_type: str = EventStream.media_type,
) -> Response:
    """The answer to ``request``: ``chunks()`` as events if it asked for a stream, else ``whole(answers)``.

    ``headers`` are asked for when the answer is there, and go in place of the warning of ignored parameters.
    ``end`` and ``failed`` are how the API ends a stream, and ``media_type`` what it calls it. What goes wrong before
    the first token is raised, also for streams; but with ``begins_within`` a stream waits only so many seconds for
    the first token, and then begins without it. Nothing goes on running when this raises, or when the client goes.
    """
    headers = headers or partial(ignored_warning, body)
    streams = False
    try:
        within = begins_within if body.stream else None
        await until_disconnect(request, answering.start(prepare, within=within))
        if body.stream:
            streams = True  # from here on the response sees to the cancelling
            return EventStream(answering, chunks(), headers(), end=end, failed=failed, media_type=media_type)
        answers = await until_disconnect(request, answering.gather())
        found = whole(answers)
        content = await found if inspect.isawaitable(found) else found
        return JSONResponse(content, headers=dict(headers()))
    finally:
        if not streams:
            answering.cancel()


async def written(
    answering: Answering,
    begin: Callable[[], list[dict[str, Any]]],
    take: Callable[[int, Event], list[dict[str, Any]]],
    end: Callable[[], list[dict[str, Any]]],
) -> AsyncIterator[bytes]:
    """A stream's chunks as server-sent events: those of one wake-up go out together."""
    if begun := begin():
        yield b"".join([sse(chunk) for chunk in begun])
    async for batch in answering.events():
        if out := [sse(chunk) for prompt, event in batch for chunk in take(prompt, event)]:
            yield b"".join(out)
    yield b"".join([sse(chunk) for chunk in end()])
