"""What ``/v1/responses`` answers with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from onceread.engine.request import Usage
from onceread.native.params import SamplingParams
from onceread.server.explain import ExplanationBody
from onceread.server.responses_items import Item, ListedItem, OutputItem
from onceread.server.usage import CachedBySourceBody, Timings

if TYPE_CHECKING:
    from onceread.server.responses_schemas import ResponsesRequest

_DEFAULTS = SamplingParams()


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = Field(description="Those that were read, and are known from now on.")
    cached_tokens_by_source: CachedBySourceBody


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseFailure(BaseModel):
    code: str
    message: str


class ResponseBody(BaseModel):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str | None
    store: bool = Field(description="Is it stored?")
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    timings: Timings | None = None
    explain: ExplanationBody | None = None  # there if it was asked for
    approximate: bool | None = None  # true where a part of the prompt was moved, see reuse_moved


class InputItemsPage(BaseModel):
    """The items that a response added to its conversation."""

    object: Literal["list"]
    data: list[ListedItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(BaseModel):
    """How many tokens a request's prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


def response_head(
    body: ResponsesRequest, response_id: str, model: str, choice: Any, *, shifts: bool
) -> dict[str, Any]:
    """A response that has just begun. ``choice``: tool_choice as the client said it."""
    text: dict[str, Any] = {"format": body.text_format.shown() if body.text_format else {"type": "text"}}
    if body.text is not None and body.text.verbosity is not None:
        text["verbosity"] = body.text.verbosity
    thinks = body.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.token_limit,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": thinks.effort if thinks else None,
            "summary": thinks.summary if thinks else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": _DEFAULTS.temperature if body.temperature is None else body.temperature,
        "text": text,
        "tool_choice": choice,
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in body.functions
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _DEFAULTS.top_p if body.top_p is None else body.top_p,
        "truncation": "auto" if shifts else "disabled",
        "usage": None,
        "user": body.user,
    }


def response_usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    """The field ``usage``."""
    by = usage.cached
    sources = CachedBySourceBody(
        context=by.context, memory=by.memory, disk=by.disk, shared=by.shared, moved=by.moved
    )
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.evaluated_tokens,
            cached_tokens_by_source=sources,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    ).model_dump()


def items_page(items: Sequence[Item], after: str | None, limit: int, order: str) -> dict[str, Any] | None:
    """A page of items; None if there is no item ``after``."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        places = [i for i, item in enumerate(ordered) if item["id"] == after]
        if not places:
            return None
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }
