"""Errors as llama-server says them, and what of its API is not to be had here."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict

from onceread.server.errors import TOO_LONG, ApiError
from onceread.server.openapi import errors

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class LlamaErrorDetail(BaseModel):
    """What went wrong. ``exceed_context_size_error`` brings ``n_prompt_tokens`` and ``n_ctx`` with it."""

    model_config = ConfigDict(extra="allow")

    code: int
    message: str
    type: str


class LlamaErrorBody(BaseModel):
    """The envelope of every error."""

    error: LlamaErrorDetail


def llama_envelope(error: ApiError) -> dict[str, Any]:
    """``error`` with llama-server's types, by which its clients decide what to do. ``param`` is ours."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    said: dict[str, Any] = {
        "code": error.status,
        "message": error.message,
        "type": TOO_LONG if error.type == TOO_LONG else kind,
    }
    if error.param is not None:
        said["param"] = error.param
    return {"error": {**said, **error.extra}}


def not_supported(message: str) -> ApiError:
    """A 501: this server, or this model, can't do it."""
    return ApiError(501, message, "not_supported_error", code="not_supported")


llama_errors = partial(errors, model=LlamaErrorBody)
"""As :func:`~onceread.server.openapi.errors`, with this envelope."""
