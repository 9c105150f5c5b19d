"""``GET /health``: for load balancers and for people who wait for a model to load. Needs no key."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from onceread.server.state import state_of

router = APIRouter(tags=["Server"])


class CacheHealth(BaseModel):
    """``ok``, ``off`` or ``failed: why``. Requests are answered also without a cache."""

    memory: str
    disk: str


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    cache: CacheHealth


class NotHealthy(BaseModel):
    status: Literal["loading", "failed"]
    detail: str | None = None


@router.get("/v1/health", include_in_schema=False)  # llama-server has it under both
@router.get(
    "/health",
    summary="Can the server answer?",
    response_model=Health,
    responses={503: {"model": NotHealthy, "description": "The model is loading, or can't be served."}},
)
async def read_health(request: Request) -> JSONResponse:
    """``ok`` and how the cache is with a 200, or ``loading`` or ``failed`` with a 503."""
    state = state_of(request)
    status, detail = state.health()
    if status == "ok":
        cache = await state.cache.read()
        tiers = CacheHealth(memory=cache.memory.state, disk=cache.disk.state)
        return JSONResponse(Health(cache=tiers).model_dump())
    return JSONResponse({"status": status} if detail is None else {"status": status, "detail": detail}, 503)
