"""OpenAI's error envelope, and which of the world's mistakes becomes which error."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from onceread.cache.errors import CacheError, DiskUnusable, PathUnknown, PinRefused
from onceread.chat.errors import ChatError
from onceread.engine import errors as engine_errors
from onceread.native.errors import SamplerInvalid, TokenizeFailed

INVALID = "invalid_request_error"
SERVER = "server_error"

CLIENT_CLOSED = 499
"""The status, known from nginx, under which requests are counted whose client went away."""

_RETRY_SOON = 1


@dataclass(eq=False)
class ApiError(Exception):
    """An error on its way to a client, in OpenAI's terms."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)  # more fields inside ``error``
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """The envelope."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.extra}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, dict(self.headers))


class ClientGone(Exception):
    """Nobody waits for this answer any more."""


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """A 400 about one parameter."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after: int | None = None) -> ApiError:
    """A 503; with ``retry_after`` seconds the client is asked to come again."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return ApiError(503, message, SERVER, code=code, headers=headers)


def internal() -> ApiError:
    """A 500. What went wrong is in the log, not in the answer."""
    message = "The server failed on this request; its log says how."
    return ApiError(500, message, SERVER, code="internal_error")


def known(error: BaseException, prompt_param: str | None = None) -> ApiError | None:
    """``error`` as the client should see it; None if it is a bug of ours.

    ``prompt_param`` is the parameter that the prompt came in.
    """
    match error:
        case ApiError():
            return error
        case engine_errors.ContextLengthExceeded():
            counts = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.limit}
            return ApiError(400, str(error), param=prompt_param, code="context_length_exceeded", extra=counts)
        case engine_errors.QueueFull():
            return unavailable(str(error), "queue_full", error.retry_after)
        case engine_errors.ShuttingDown():
            return unavailable(str(error) or "The server is shutting down.", "shutting_down", _RETRY_SOON)
        case engine_errors.InvalidRequest():
            return invalid(str(error), error.param or prompt_param)
        case ChatError() | TokenizeFailed():
            return invalid(str(error), prompt_param)
        case SamplerInvalid():
            return invalid(str(error), "grammar" if "grammar" in str(error) else None)
        case PinRefused():
            return ApiError(409, str(error), code="pin_refused")
        case PathUnknown():
            return ApiError(404, str(error) or "No stored path has this id.", param="id", code="path_unknown")
        case DiskUnusable():
            return unavailable(str(error), "disk_failed")
        case engine_errors.EngineFailed():
            return ApiError(500, str(error), SERVER, code="engine_failed")
        case _:
            return None


async def on_known(_request: Request, error: Exception) -> Response:
    """The handler for every exception that :func:`known` knows."""
    return (known(error) or internal()).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The handler for what the router itself refuses: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            answer = ApiError(404, f"Unknown request URL: {where}.", code="unknown_url", headers=headers)
        case 405:
            allowed = headers.get("Allow") or headers.get("allow") or "other methods"
            message = f"{request.method} is not allowed on {request.url.path}; use {allowed}."
            answer = ApiError(405, message, code="method_not_allowed", headers=headers)
        case status:
            answer = ApiError(status, str(error.detail), headers=headers)
    return answer.response()


async def on_client_gone(_request: Request, _error: Exception) -> Response:
    """Nobody reads this; the status is for the log and the metrics."""
    return Response(status_code=CLIENT_CLOSED)


Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

HANDLERS: dict[int | type[Exception], Handler] = {
    HTTPException: on_http_exception,
    ClientGone: on_client_gone,
    ClientDisconnect: on_client_gone,
    ApiError: on_known,
    CacheError: on_known,
    engine_errors.EngineError: on_known,
    ChatError: on_known,
    TokenizeFailed: on_known,
    SamplerInvalid: on_known,
}
