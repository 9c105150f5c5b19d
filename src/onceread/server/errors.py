"""What can go wrong, in OpenAI's terms, and which of the world's mistakes becomes which error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onceread.cache.errors import DiskUnusable, PathUnknown, PinRefused
from onceread.chat.errors import ChatError
from onceread.engine import errors as engine_errors
from onceread.native.errors import SamplerInvalid, TokenizeFailed

INVALID = "invalid_request_error"
TOO_LONG = "exceed_context_size_error"  # llama-server's, by which agents decide to compact
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
        """OpenAI's envelope. The other APIs' are in ``error_handlers.py``."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.extra}}


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
            code = "context_length_exceeded"
            return ApiError(400, str(error), TOO_LONG, param=prompt_param, code=code, extra=counts)
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
