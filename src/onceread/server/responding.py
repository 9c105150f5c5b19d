"""The course of every completion request: submit, wait, answer whole or as a stream, stop if nobody waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from onceread.engine.request import Completed
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering, until_disconnect
from onceread.server.body import ignored_warning
from onceread.server.errors import ApiError
from onceread.server.event_stream import DONE, EventStream, openai_error
from onceread.server.generation_fields import GenerationFields


async def respond(
    request: Request,
    body: GenerationFields,
    answering: Answering,
    prepare: Callable[[], Sequence[EngineRequest]],
    *,
    chunks: Callable[[], AsyncIterator[bytes]],
    whole: Callable[[list[Completed]], dict[str, Any]],
    headers: Mapping[str, str] | None = None,
    begins_within: float | None = None,
    end: bytes = DONE,
    failed: Callable[[ApiError], bytes] = openai_error,
) -> Response:
    """The answer to ``request``: ``chunks()`` as events if it asked for a stream, else ``whole(answers)``.

    ``headers`` go in place of the warning of ignored parameters. ``end`` and ``failed`` are how the API ends a
    stream. What goes wrong before the first token is raised, also for streams; but with ``begins_within`` a stream
    waits only so many seconds for the first token, and then begins without it. Nothing goes on running when this
    raises, or when the client goes.
    """
    streams = False
    try:
        within = begins_within if body.stream else None
        await until_disconnect(request, answering.start(prepare, within=within))
        headers = ignored_warning(body) if headers is None else headers
        if body.stream:
            streams = True  # from here on the response sees to the cancelling
            return EventStream(answering, chunks(), headers, end=end, failed=failed)
        answers = await until_disconnect(request, answering.gather())
        return JSONResponse(whole(answers), headers=dict(headers))
    finally:
        if not streams:
            answering.cancel()
