"""Server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onceread.server.answering import Answering, race
from onceread.server.errors import ApiError, ClientGone, internal, known

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

# Line breaks to some clients' line splitters, though not to the standard; JSON can say them otherwise.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def sse(chunk: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event, with a name where the API has names for them."""
    text = _encode(chunk)
    if not text.isascii():
        text = text.translate(_LINE_BREAKS)
    return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()


def openai_error(error: ApiError) -> bytes:
    """The event in which OpenAI's streams tell an error."""
    return sse(error.body())


class EventStream(Response):
    """Sends what ``chunks`` yields as it comes, and cancels the answering when the client goes.

    An error on the way becomes the last event, in place of ``end``: the stream is not complete.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        answering: Answering,
        chunks: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        end: bytes = DONE,
        failed: Callable[[ApiError], bytes] = openai_error,
        media_type: str = media_type,
    ) -> None:
        """``end`` is sent behind the last chunk; ``failed`` makes the event for an error."""
        # Proxies must neither keep nor gather it.
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers={**own, **(headers or {})}, media_type=media_type)
        del self.headers["content-length"]
        self._answering = answering
        self._chunks = chunks
        self._end = end
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await race(self._send(send), receive)
        except ClientGone:
            pass
        finally:
            self._answering.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            last = self._end
        except Exception as error:  # the status is sent: this is the only way left to say it
            answer = known(error)
            if answer is None:
                log.exception("a stream failed")
                answer = internal()
            last = self._failed(answer)
        await send({"type": "http.response.body", "body": last, "more_body": False})
