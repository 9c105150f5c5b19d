"""The models in Anthropic's shape, for clients that say they are Anthropic's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal

from fastapi import Request
from pydantic import BaseModel

from onceread.server.state import Serving


class AnthropicModel(BaseModel):
    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int  # prompt and reply together


class AnthropicModelList(BaseModel):
    data: list[AnthropicModel]
    has_more: bool = False
    first_id: str
    last_id: str


def asks_anthropic(request: Request) -> bool:
    """Does the client speak Anthropic's API? It shares the paths of models with OpenAI's."""
    return "anthropic-version" in request.headers


def anthropic_model(serving: Serving) -> AnthropicModel:
    return AnthropicModel(
        id=serving.name,
        display_name=serving.name,
        created_at=datetime.fromtimestamp(serving.since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=serving.engine.limit,
    )


def anthropic_models(serving: Serving) -> AnthropicModelList:
    return AnthropicModelList(data=[anthropic_model(serving)], first_id=serving.name, last_id=serving.name)
