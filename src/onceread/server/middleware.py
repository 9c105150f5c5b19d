"""What happens around every request.

Written as plain ASGI, because Starlette's BaseHTTPMiddleware hides that a client disconnected.
"""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceread.server.error_handlers import shaped
from onceread.server.errors import CLIENT_CLOSED, ApiError, internal
from onceread.server.metrics import Metrics

log = logging.getLogger(__name__)


class BodyLimit:
    """Refuses bodies above a size with a 413, before they are read, or while if they come in chunks."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _content_length(scope)
        seen = 0

        async def limited() -> Message:
            # Raised here, where the route asks for the body, the error takes the way of all errors.
            nonlocal seen
            if announced > self._max_bytes:
                raise self._too_large()
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, limited, send)

    def _too_large(self) -> ApiError:
        message = f"The request body is larger than {self._max_bytes} bytes (--max-body-bytes)."
        return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


class CatchAll:
    """Turns an exception nobody expected into a logged traceback and a 500 in the usual envelope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:  # the connection is cut, so that nobody takes the part for the whole
                raise
            await shaped(internal(), scope["path"])(scope, receive, send)


class Measure:
    """Counts and times every request under its route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = CLIENT_CLOSED

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never the raw path: it has no bound
            self._metrics.request_done(route, scope["method"], status, time.monotonic() - started)


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
