"""``GET /v1/models``: the one model that is served."""

from __future__ import annotations

from typing import Literal

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
    context_length: int  # tokens that one request may use, prompt and reply together
    meta: ModelMeta


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/models", summary="The models that are served", responses=errors(401, 503))
async def list_models(request: Request) -> ModelList | AnthropicModelList:
    """One model, under the name that answers give it; with a header `anthropic-version` in Anthropic's shape."""
    serving = state_of(request).serving()
    return anthropic_models(serving) if asks_anthropic(request) else ModelList(data=[_card(serving)])


@router.get("/models/{model:path}", summary="One model", responses=errors(401, 404, 503))
async def get_model(request: Request, model: str) -> ModelCard | AnthropicModel:
    """The model of this name. Requests for completions may name any: they get the one there is."""
    serving = state_of(request).serving()
    if model != serving.name:
        message = f"The model {model[:100]!r} does not exist; this server has {serving.name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    return anthropic_model(serving) if asks_anthropic(request) else _card(serving)


def _card(serving: Serving) -> ModelCard:
    model = serving.model
    return ModelCard(
        id=serving.name,
        created=serving.since,
        context_length=serving.engine.limit,
        meta=ModelMeta(
            architecture=model.architecture,
            description=model.description,
            n_params=model.n_params,
            n_vocab=model.vocab.size,
            n_ctx_train=model.n_ctx_train,
            size=model.size_bytes,
        ),
    )
