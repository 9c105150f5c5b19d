"""The OpenAPI document. Routes read their bodies themselves, so what they take is said here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"
_taken: dict[str, type[BaseModel]] = {}


class ErrorDetail(BaseModel):
    """What went wrong. Some codes bring more fields with them."""

    model_config = ConfigDict(extra="allow")

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The envelope of every error."""

    error: ErrorDetail


_SAYS = {
    400: "A parameter is wrong; `param` names it.",
    401: "The API key is missing or wrong.",
    403: "Only the admin key may do this.",
    404: "There is no such thing.",
    409: "It does not fit; the message has the figures.",
    413: "The body is too large.",
    415: "The body's content type is not JSON.",
    500: "The server failed.",
    501: "This server does not do that.",
    503: "Loading, shutting down, or too many requests wait; see `code` and `Retry-After`.",
}


def errors(*statuses: int, model: type[BaseModel] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """Entries of a route's ``responses`` for these errors; ``model`` is the API's envelope."""
    return {status: {"model": model, "description": _SAYS[status]} for status in statuses}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """A route's ``openapi_extra`` that says: its body is this model, as JSON."""
    _taken[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _drop_validation_errors(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    # FastAPI announces its own 422 for every route with parameters; here a wrong one is a 400.
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


def document(app: FastAPI, *, needs_key: bool) -> dict[str, Any]:
    """The document of ``app``'s routes."""
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, bodies = models_json_schema([(model, "validation") for model in _taken.values()], ref_template=_REF)
    components = found.setdefault("components", {})
    components.setdefault("schemas", {}).update(bodies["$defs"])
    _drop_validation_errors(found["paths"], components["schemas"])
    if not needs_key:  # FastAPI says so of every route that authenticates
        components.pop("securitySchemes", None)
        for operations in found["paths"].values():
            for operation in operations.values():
                operation.pop("security", None)
    return found
