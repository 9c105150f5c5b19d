"""``POST /cache/warm`` and ``POST /cache/clear``: read something ahead of time, and forget."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, read_body
from onceread.server.cache_access import acting_namespace, admin_required, store_of
from onceread.server.cache_schemas import Cleared, ClearRequest, Warmed, WarmRequest
from onceread.server.openapi import errors, takes
from onceread.server.reading import read_now
from onceread.server.state import state_of
from onceread.server.threads import wait_in_thread
from onceread.server.usage import timings, usage_body

router = APIRouter(prefix="/cache", tags=["Cache"])


@router.post(
    "/warm",
    summary="Read a prompt now, without a reply",
    response_model=Warmed,
    responses=errors(400, 401, 403, 404, 413, 415, 500, 503),
    openapi_extra=takes(WarmRequest),
)
async def warm_cache(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """What begins with this prompt starts at once afterwards. Messages are read without a turn for the reply."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, WarmRequest)
    store_of(state, serving)
    read = await read_now(request, state, serving, body, acting_namespace(caller, body.key, body.cache_salt))
    answer = Warmed(usage=usage_body([read.usage]), timings=timings([read.usage]), stored=read.stored)
    return JSONResponse(answer.model_dump(), headers=ignored_warning(body))


@router.post(
    "/clear",
    summary="Forget what was read",
    response_model=Cleared,
    responses=errors(400, 401, 403, 413, 415, 500, 503),
    openapi_extra=takes(ClearRequest),
)
async def clear_cache(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """Everything of the caller's namespace, with pins and stored responses; or of everyone. Running requests go on."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, ClearRequest)
    namespaces: list[str] | None = None
    if not body.all:
        namespaces = [acting_namespace(caller, body.key, body.cache_salt)]
    elif not caller.clears_all:
        raise admin_required("clear everyone's cache")
    freed = await wait_in_thread(partial(serving.engine.clear, namespaces))
    freed += await wait_in_thread(partial(state.responses.clear, namespaces))
    return JSONResponse(Cleared(freed_bytes=freed).model_dump(), headers=ignored_warning(body))
