"""The course of every completion request: submit, wait, answer whole or as a stream, stop if nobody waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from onceread.engine.request import Completed
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering, until_disconnect
from onceread.server.body import StreamedRequest, ignored_warning
from onceread.server.errors import ApiError
from onceread.server.event_stream import DONE, EventStream, openai_error


async def respond(
    request: Request,
    body: StreamedRequest,
    answering: Answering,
    prepare: Callable[[], Sequence[EngineRequest]],
    *,
    chunks: Callable[[], AsyncIterator[bytes]],
    whole: Callable[[list[Completed]], Any],
    end: bytes = DONE,
    failed: Callable[[ApiError], bytes] = openai_error,
    media_type: str = EventStream.media_type,
) -> Response:
    """The answer to ``request``: ``chunks()`` as events if it asked for a stream, else ``whole(answers)``.

    ``end`` and ``failed`` are how the API ends a stream, and ``media_type`` what it calls it. What goes wrong
    before the first token is raised, also for streams. Nothing goes on running when this raises, or when the
    client goes.
    """
    streams = False
    try:
        await until_disconnect(request, answering.start(prepare))
        headers = ignored_warning(body)
        if body.stream:
            streams = True  # from here on the response sees to the cancelling
            headers = {**headers, "Content-Type": media_type}
            return EventStream(answering, chunks(), headers, end=end, failed=failed)
        answers = await until_disconnect(request, answering.gather())
        return JSONResponse(whole(answers), headers=headers)
    finally:
        if not streams:
            answering.cancel()
