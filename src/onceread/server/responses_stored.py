"""``/v1/responses/{id}``: what is stored, to be read and to be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from onceread.server.auth import Caller, authenticate
from onceread.server.cache_schemas import MAX_SALT, SALT_SAYS
from onceread.server.errors import ApiError, invalid
from onceread.server.openapi import errors
from onceread.server.responses_bodies import Deleted, InputItemsPage, ResponseBody, items_page
from onceread.server.responses_store import ResponseMissing
from onceread.server.state import state_of
from onceread.server.threads import wait_in_thread

T = TypeVar("T")

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"])

ResponseId = Annotated[str, Path(max_length=256)]
Salt = Annotated[str | None, Query(max_length=MAX_SALT, description=SALT_SAYS)]

_MAX_PAGE = 100


@router.get(
    "/{response_id}",
    summary="A stored response",
    response_model=ResponseBody,
    responses=errors(400, 401, 404, 500, 503),
)
async def retrieve_response(
    request: Request,
    response_id: ResponseId,
    cache_salt: Salt = None,
    stream: Annotated[bool, Query(description="Only false: a stream can't be taken up again.")] = False,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> Response:
    """As it was answered. Responses that failed, or were left by their clients, are not stored."""
    if stream:
        message = "stream: a response can be read again only whole; streams are not kept."
        raise invalid(message, "stream", "unsupported_parameter")
    store = state_of(request).responses
    found = await _found(response_id, partial(store.response, caller.namespace(cache_salt), response_id))
    return JSONResponse(found)


@router.delete(
    "/{response_id}",
    summary="Forget a stored response",
    response_model=Deleted,
    responses=errors(400, 401, 404, 500, 503),
)
async def delete_response(
    request: Request,
    response_id: ResponseId,
    cache_salt: Salt = None,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> Response:
    """Later responses of its conversation stay, but can't be gone on from."""
    store = state_of(request).responses
    await _found(response_id, partial(store.delete, caller.namespace(cache_salt), response_id))
    return JSONResponse(Deleted(id=response_id, object="response", deleted=True).model_dump())


@router.get(
    "/{response_id}/input_items",
    summary="The items that a response was asked with",
    response_model=InputItemsPage,
    responses=errors(400, 401, 404, 500, 503),
)
async def list_input_items(
    request: Request,
    response_id: ResponseId,
    cache_salt: Salt = None,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> Response:
    """Its own; those of the responses before it are listed with them."""
    store = state_of(request).responses
    turn = await _found(response_id, partial(store.turn, caller.namespace(cache_salt), response_id))
    page = items_page(turn.input, after, limit, order)
    if page is None:
        raise ApiError(404, f"Item with id {after!r} not found.", param="after", code="item_not_found")
    return JSONResponse(page)


@router.post(
    "/{response_id}/cancel",
    summary="Refused: no response is made in the background",
    response_model=ResponseBody,
    responses=errors(400, 401, 404, 500, 503),
)
async def cancel_response(
    request: Request,
    response_id: ResponseId,
    cache_salt: Salt = None,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> Response:
    """A response that is being made ends when its client closes the connection."""
    store = state_of(request).responses
    await _found(response_id, partial(store.response, caller.namespace(cache_salt), response_id))
    message = (
        "Only responses in the background can be cancelled, and there are none; close the connection instead."
    )
    raise invalid(message, "response_id", "unsupported_operation")


async def _found(response_id: str, look: Callable[[], T]) -> T:
    try:
        return await wait_in_thread(look)
    except ResponseMissing:
        message = f"Response with id {response_id[:80]!r} not found."
        raise ApiError(404, message, param="response_id", code="response_not_found") from None
