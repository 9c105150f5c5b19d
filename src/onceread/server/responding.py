"""The course of every completion request: submit, wait, answer whole or as a stream, stop if nobody waits."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
    whole: Callable[[list[Completed]], dict[str, Any] | Awaitable[dict[str, Any]]],
    end: bytes = DONE,
    failed: Callable[[ApiError], bytes] = openai_error,
    early: bool = False,
    warnings: Sequence[str] = (),
) -> Response:
    """The answer to ``request``: ``chunks()`` as events if it asked for a stream, else ``whole(answers)``.

    ``end`` and ``failed`` are how the API ends a stream. What goes wrong before the first token is raised, also
    for streams. With ``early`` a stream begins as soon as the engine has the request, before the prompt is read,
    and what goes wrong from then on is told in the stream. ``warnings`` go into a header with the names of the
    parameters that were not understood; ``whole`` may still add to them. Nothing goes on running when this raises,
    or when the client goes.
    """
    streams = False
    try:
        begin = answering.submit if early and body.stream else answering.start
        await until_disconnect(request, begin(prepare))
        if body.stream:
            streams = True  # from here on the response sees to the cancelling
            headers = ignored_warning(body, *warnings)
            return EventStream(answering, chunks(), headers, end=end, failed=failed)
        answers = await until_disconnect(request, answering.gather())
        found = whole(answers)
        content = await found if inspect.isawaitable(found) else found
        return JSONResponse(content, headers=ignored_warning(body, *warnings))
    finally:
        if not streams:
            answering.cancel()
