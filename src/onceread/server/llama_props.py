"""``/props``, ``/slots`` and ``/lora-adapters``: what llama-server's clients ask before they begin."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from onceread import __version__
from onceread.native.params import SamplingParams
from onceread.server.auth import authenticate
from onceread.server.errors import unavailable
from onceread.server.llama_errors import llama_errors, not_supported
from onceread.server.llama_reply import generation_settings
from onceread.server.state import Serving, state_of

router = APIRouter(tags=["llama-server"], dependencies=[Depends(authenticate)])


class Slot(BaseModel):
    """One of the requests that can be answered at a time. Of whose it is, and what it says, nothing is told."""

    id: int
    id_task: int = -1
    n_ctx: int
    speculative: bool = False
    is_processing: bool


class DefaultSettings(Slot):
    params: dict[str, Any]


class Modalities(BaseModel):
    vision: bool = False
    audio: bool = False


class Props(BaseModel):
    """The server and its model."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str  # its name: where it lies is nobody's business
    modalities: Modalities = Modalities()
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = True
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False


class LoraAdapter(BaseModel):
    id: int
    path: str
    scale: float


@router.get("/props", summary="The server and its model", responses=llama_errors(401, 503))
async def read_props(request: Request) -> Props:
    """The context's size, the chat template, and how replies are sampled if nothing is said."""
    state = state_of(request)
    serving = state.serving()
    return Props(
        default_generation_settings=DefaultSettings(
            id=0,
            n_ctx=serving.engine.limit,
            is_processing=False,
            params=generation_settings(SamplingParams()),
        ),
        total_slots=serving.engine.config.parallel,
        model_alias=serving.name,
        model_path=serving.name,
        chat_template=serving.template.source,
        bos_token=_text(serving, serving.model.vocab.bos),
        eos_token=_text(serving, serving.model.vocab.eos),
        build_info=f"onceread-{__version__}",
    )


@router.post("/props", summary="Not to be had", responses=llama_errors(401, 501))
async def write_props() -> None:
    """Refused: settings are the command line's."""
    raise not_supported("This server's properties can't be changed while it runs.")


@router.get("/slots", summary="How many requests are being answered", responses=llama_errors(401, 503))
async def read_slots(request: Request, fail_on_no_slot: str | None = None) -> list[Slot]:
    """A slot for each request that can run at a time. Which of them is busy is made up; how many is not."""
    state = state_of(request)
    serving = state.serving()
    running = serving.engine.stats().running
    total = serving.engine.config.parallel
    if fail_on_no_slot and running >= total:
        raise unavailable("no slot available", "no_slot")
    return [Slot(id=i, n_ctx=serving.engine.limit, is_processing=i < running) for i in range(total)]


@router.post("/slots/{id_slot}", summary="Not to be had", responses=llama_errors(400, 401, 501))
async def use_slot(id_slot: int, action: Literal["save", "restore", "erase"]) -> None:
    """Refused: whatever was read is kept by itself, and comes back by itself."""
    raise not_supported(
        f"A slot can't be told to {action}: everything that was read is kept and found again by its text."
        " See POST /cache/pin and POST /cache/clear."
    )


@router.get("/lora-adapters", summary="None", responses=llama_errors(401))
async def list_adapters() -> list[LoraAdapter]:
    """There are none."""
    return []


def _text(serving: Serving, token: int) -> str:
    return serving.model.vocab.text(token) if token >= 0 else ""
