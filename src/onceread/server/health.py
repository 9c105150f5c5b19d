"""``GET /health``: for load balancers and for people who wait for a model to load. Needs no key."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from onceread.server.state import state_of

router = APIRouter(tags=["Server"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class NotHealthy(BaseModel):
    status: Literal["loading", "failed"]
    detail: str | None = None


@router.get(
    "/health",
    summary="Can the server answer?",
    response_model=Health,
    responses={503: {"model": NotHealthy, "description": "The model is loading, or can't be served."}},
)
async def read_health(request: Request) -> JSONResponse:
    """``{"status": "ok"}`` with a 200, or ``loading`` or ``failed`` with a 503."""
    status, detail = state_of(request).health()
    body = {"status": status} if detail is None else {"status": status, "detail": detail}
    return JSONResponse(body, 200 if status == "ok" else 503)
