"""``GET /v1/models``: the model that is served, and the one for embeddings where that is another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from onceread.server.anthropic_models import (
    AnthropicModel,
    AnthropicModelList,
    anthropic_model,
    anthropic_models,
    asks_anthropic,
)
from onceread.server.auth import authenticate
from onceread.server.errors import ApiError
from onceread.server.openapi import errors
from onceread.server.state import Serving, state_of

if TYPE_CHECKING:
    from onceread.native.model import Model

router = APIRouter(prefix="/v1", tags=["OpenAI"], dependencies=[Depends(authenticate)])


class ModelMeta(BaseModel):
    """What the GGUF file says of itself."""

    architecture: str
    description: str
    n_params: int
    n_vocab: int
    n_ctx_train: int
    size: int  # bytes


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "onceread"
    context_length: (
        int  # tokens that one request may use, prompt and reply together; or that one input may have
    )
    meta: ModelMeta


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/models", summary="The models that are served", responses=errors(401, 503))
async def list_models(request: Request) -> ModelList | AnthropicModelList:
    """The model that writes, then the one that embeds if it is another, under the names that answers give them.

    With a header `anthropic-version` in Anthropic's shape.
    """
    serving = state_of(request).serving()
    return anthropic_models(serving) if asks_anthropic(request) else ModelList(data=_cards(serving))


@router.get("/models/{model:path}", summary="One model", responses=errors(401, 404, 503))
async def get_model(request: Request, model: str) -> ModelCard | AnthropicModel:
    """The model of this name. Requests for completions may name any: they get the one there is."""
    serving = state_of(request).serving()
    if asks_anthropic(request) and model == serving.name:
        return anthropic_model(serving)
    cards = _cards(serving)
    for card in cards:
        if card.id == model:
            return card
    names = " and ".join(repr(card.id) for card in cards)
    message = f"The model {model[:100]!r} does not exist; this server has {names}."
    raise ApiError(404, message, param="model", code="model_not_found")


def _cards(serving: Serving) -> list[ModelCard]:
    cards = [_card(serving.name, serving.model, serving.engine.limit, serving.since)]
    if serving.embeddings is not None and serving.embeds_apart:
        embeds = serving.embeddings
        cards.append(_card(serving.embedding_name, embeds.model, embeds.plan().limit, serving.since))
    return cards


def _card(name: str, model: Model, limit: int, since: int) -> ModelCard:
    return ModelCard(
        id=name,
        created=since,
        context_length=limit,
        meta=ModelMeta(
            architecture=model.architecture,
            description=model.description,
            n_params=model.n_params,
            n_vocab=model.vocab.size,
            n_ctx_train=model.n_ctx_train,
            size=model.size_bytes,
        ),
    )
