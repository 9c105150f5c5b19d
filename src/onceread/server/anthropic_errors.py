"""Errors as Anthropic's clients know them."""

from __future__ import annotations

import secrets
from typing import Any

from onceread.server.errors import TOO_LONG, ApiError
from onceread.server.event_stream import sse

PATH = "/v1/messages"
"""What the paths of Anthropic's API begin with, but for those that it shares with OpenAI's."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


REQUEST_ID = "request-id"
"""The header that names a request."""


def request_id() -> str:
    """A name for one request."""
    return f"req_{secrets.token_hex(12)}"


def anthropic_envelope(error: ApiError, request: str | None = None) -> dict[str, Any]:
    """``error`` in Anthropic's envelope, of the request of this id. OpenAI's param and code are inside of it, too."""
    message, extra = error.message, dict(error.extra)
    if error.type == TOO_LONG:
        n, limit = extra.get("n_prompt_tokens"), extra.get("n_ctx")
        if isinstance(n, int) and isinstance(limit, int):
            # By these words coding agents know that it is time to compact. One position is the reply's.
            message = f"prompt is too long: {n} tokens > {limit - 1} maximum"
    details = {"param": error.param, "code": error.code}
    return {
        "type": "error",
        "error": {
            "type": _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error"),
            "message": message,
            **{name: value for name, value in details.items() if value is not None},
            **extra,
        },
        "request_id": request or request_id(),
    }


def anthropic_error(request: str, error: ApiError) -> bytes:
    """The event in which Anthropic's streams tell an error of the request of this id."""
    return sse(anthropic_envelope(error, request), "error")
