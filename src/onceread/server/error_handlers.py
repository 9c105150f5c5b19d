"""Errors as each API's clients know them: the envelopes, and the handlers that send them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from onceread.cache.errors import CacheError
from onceread.chat.errors import ChatError
from onceread.engine import errors as engine_errors
from onceread.native.errors import SamplerInvalid, TokenizeFailed
from onceread.server import anthropic_errors
from onceread.server.body import describe
from onceread.server.errors import CLIENT_CLOSED, ApiError, ClientGone, internal, known
from onceread.server.llama_errors import llama_envelope

Envelope = Callable[[ApiError], dict[str, Any]]

_LLAMA = (
    "/completion",
    "/infill",
    "/embedding",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/props",
    "/slots",
    "/lora-adapters",
)
_ENVELOPES: tuple[tuple[str, Envelope], ...] = (
    (anthropic_errors.PATH, anthropic_errors.anthropic_envelope),
    *((path, llama_envelope) for path in _LLAMA),
    ("/api/", lambda error: {"error": error.message}),  # Ollama's
)
"""By what a path begins with; OpenAI's for all others."""


def envelope(error: ApiError, path: str) -> dict[str, Any]:
    """``error`` as the API that ``path`` belongs to says it."""
    for begin, made in _ENVELOPES:
        if path.startswith(begin):
            return made(error)
    return error.body()


def shaped(error: ApiError, path: str) -> JSONResponse:
    """The answer to a request for ``path``."""
    body = envelope(error, path)
    headers = dict(error.headers)
    if "request_id" in body:
        headers[anthropic_errors.REQUEST_ID] = body["request_id"]
    return JSONResponse(body, error.status, headers)


async def on_bad_parameters(request: Request, error: RequestValidationError) -> Response:
    """The handler for what FastAPI refuses in a query or a path."""
    first = error.errors()[0]
    where = first["loc"][1:]  # the first step is "query" or "path"
    wrong = describe(ErrorDetails(type=first["type"], loc=where, msg=first["msg"], input=None))
    return shaped(wrong, request.url.path)


async def on_known(request: Request, error: Exception) -> Response:
    """The handler for every exception that :func:`known` knows."""
    return shaped(known(error) or internal(), request.url.path)


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
    return shaped(answer, request.url.path)


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
    RequestValidationError: on_bad_parameters,
}
