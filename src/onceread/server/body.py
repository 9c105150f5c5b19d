"""From a request's bytes to a validated model, or to a 400 that names what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from onceread.server.errors import ApiError, invalid

WARNING_HEADER = "x-onceread-warning"

_IN_THREAD = 64 * 1024  # bytes from which parsing is worth a thread
_MAX_WARNED = 20
_MAX_NAME = 64


class RequestModel(BaseModel):
    """Base of request bodies: JSON types are taken at their word ("5" is not 5), unknown fields are kept."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )

    @property
    def not_honoured(self) -> set[str]:
        """The names of what was said and changes nothing, for the client to be told."""
        return set(self.model_extra or {})


class StreamedRequest(RequestModel):
    """Base of bodies that can be answered as a stream."""

    stream: bool | None = None


Body = TypeVar("Body", bound=RequestModel)
T = TypeVar("T")


async def read_body(request: Request, model: type[Body]) -> Body:
    """The request's JSON as ``model``. Raises ApiError: 415 for other content types, 400 for bad bodies."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([\w.-]+\+)?json", content_type):
        # Also a safeguard: a web page can make a browser send other types to localhost without asking.
        message = "Send the body as JSON, with 'Content-Type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")
    raw = await request.body()
    parse = partial(parse_body, model, raw)
    return await to_thread.run_sync(parse) if len(raw) > _IN_THREAD else parse()


async def translated(request: Request, work: Callable[[], T]) -> T:
    """The result of ``work`` on a body that was read: on a thread if that is large, like the reading itself."""
    return await to_thread.run_sync(work) if len(await request.body()) > _IN_THREAD else work()


def parse_body(model: type[Body], raw: bytes) -> Body:
    """``raw`` as ``model``. Raises ApiError for the first thing that is wrong."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # The first is enough for a client, and a hostile body can have a million.
        raise describe(error.errors(include_url=False, include_input=False)[0]) from None
    except RecursionError:
        raise invalid("The JSON is nested too deeply.", code="invalid_json") from None


def from_fields(model: type[Body], fields: Mapping[str, Any]) -> Body:
    """What another API's body was translated to, as ``model``. Raises ApiError for the first thing that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise describe(error.errors(include_url=False, include_input=False)[0]) from None


def ignored_warning(model: RequestModel, *more: str) -> dict[str, str]:
    """A header that names the parameters that were not understood, and says what ``more`` there is; else none."""
    names = model.not_honoured
    said = [*([f"ignored parameters: {listed(names)}"] if names else []), *more]
    return {WARNING_HEADER: "; ".join(said)} if said else {}


def listed(names: Iterable[str]) -> str:
    """Names that come from a client, for a header or a line of the log: nothing of them may break out of it."""
    distinct = sorted(set(names))
    shown = [re.sub(r"[^\w.-]", "?", name[:_MAX_NAME], flags=re.ASCII) for name in distinct[:_MAX_WARNED]]
    more = f" and {len(distinct) - len(shown)} more" if len(distinct) > len(shown) else ""
    return ", ".join(shown) + more


def path_of(location: Iterable[int | str]) -> str | None:
    """Where in the body, as clients write it: ``messages[0].content``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or None


def describe(error: ErrorDetails) -> ApiError:
    """What is wrong with a body or a parameter, as the client should see it."""
    kind, message, param = error["type"], error["msg"], path_of(error["loc"])
    if kind == "json_invalid":
        return invalid(f"The body is not valid JSON: {_reason(error)}.", code="invalid_json")
    if param is None:
        return invalid("The body must be a JSON object.", code="invalid_type")
    message = message.replace("Input should be", "must be").replace("Field required", "is required")
    return invalid(f"{param}: {message}.", param, _code(kind))


def _reason(error: ErrorDetails) -> Any:
    return error.get("ctx", {}).get("error", "it can't be parsed")


def _code(kind: str) -> str:
    if kind == "missing":
        return "missing_required_parameter"
    if kind.endswith("_type"):
        return "invalid_type"
    # Kinds that our own validators make are codes already.
    return kind if kind.startswith("unsupported_") else "invalid_value"
