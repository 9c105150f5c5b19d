"""``/cache/pins``, ``/cache/pin``: prefixes that are kept whatever happens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from onceread.cache.contract import Pin
from onceread.cache.errors import PathUnknown
from onceread.cache.names import namespace_id
from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, read_body
from onceread.server.cache_access import acting_namespace, store_of, visible
from onceread.server.cache_schemas import (
    ID,
    KEY_SAYS,
    SALT_SAYS,
    KeyName,
    PinBody,
    PinList,
    PinRequest,
    Salt,
    Unpinned,
    pin_body,
)
from onceread.server.errors import ApiError
from onceread.server.openapi import errors, takes
from onceread.server.reading import STORED_WITHIN, read_now
from onceread.server.state import state_of
from onceread.server.threads import wait_in_thread

if TYPE_CHECKING:
    from onceread.cache.store import Store

router = APIRouter(prefix="/cache", tags=["Cache"])


@router.get("/pins", summary="The pinned prefixes", responses=errors(400, 401, 403, 404, 503))
async def list_pins(
    request: Request,
    cache_salt: Annotated[Salt | None, Query(description=SALT_SAYS)] = None,
    key: Annotated[KeyName | None, Query(description=KEY_SAYS)] = None,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> PinList:
    """Those of the caller's namespace; with the admin key those of all."""
    state = state_of(request)
    store = store_of(state, state.serving())
    listing = partial(store.pins, visible(caller, key, cache_salt))
    pins = await wait_in_thread(listing)
    return PinList(pins=[pin_body(pin) for pin in pins])


@router.post(
    "/pin",
    summary="Pin a prefix",
    response_model=PinBody,
    responses=errors(400, 401, 403, 404, 409, 413, 415, 500, 503),
    openapi_extra=takes(PinRequest),
)
async def pin_prefix(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """Keep a stored path, or read a prompt or messages first and keep those. What can't fit is refused."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, PinRequest)
    store = store_of(state, serving)
    if body.id is not None:
        work = partial(_pin_path, store, body.id, visible(caller, body.key, body.cache_salt), body.name)
        pin = await wait_in_thread(work)
    else:
        namespace = acting_namespace(caller, body.key, body.cache_salt)
        read = await read_now(request, state, serving, body, namespace)
        work = partial(_pin_tokens, store, namespace_id(namespace), read.tokens, body.name)
        pin = await wait_in_thread(work)
    return JSONResponse(pin_body(pin).model_dump(), headers=ignored_warning(body))


@router.delete("/pin/{id}", summary="Remove a pin", responses=errors(400, 401, 403, 404, 503))
async def delete_pin(
    request: Request,
    id: Annotated[str, Path(pattern=ID, description="The pin's id, or its beginning.")],  # noqa: A002
    cache_salt: Annotated[Salt | None, Query(description=SALT_SAYS)] = None,
    key: Annotated[KeyName | None, Query(description=KEY_SAYS)] = None,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> Unpinned:
    """What was pinned stays stored until its place is wanted."""
    state = state_of(request)
    store = store_of(state, state.serving())
    work = partial(store.unpin, id, visible(caller, key, cache_salt))
    if not await wait_in_thread(work):
        raise ApiError(404, f"There is no pin {id!r}.", param="id", code="pin_unknown")
    return Unpinned(id=id)


def _pin_path(store: Store, id: str, namespaces: set[bytes] | None, name: str) -> Pin:  # noqa: A002
    namespace, tokens = store.find(id, namespaces)
    return store.pin(namespace, tokens, name)


def _pin_tokens(store: Store, namespace: bytes, tokens: tuple[int, ...], name: str) -> Pin:
    try:
        return store.pin(namespace, np.asarray(tokens, dtype=np.int32), name)
    except PathUnknown:
        message = (
            f"All {len(tokens)} tokens were read, and not all could be stored within {STORED_WITHIN:g} s: "
            "no room, or a disk too slow; GET /cache tells which."
        )
        raise ApiError(409, message, code="pin_refused") from None
