"""The bodies of ``/v1/completions``: what it takes and what it gives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.engine.request import FinishReason
from onceread.server.errors import invalid
from onceread.server.explain import ExplanationBody
from onceread.server.generation_fields import MAX_TOP_LOGPROBS, GenerationFields, refuse_unless
from onceread.server.usage import Timings, UsageBody

MAX_REPLIES = 256
"""Prompts of one request, times ``n``."""

Prompt = str | list[int]


def _prompts(value: object) -> list[Prompt]:
    """All the shapes that the API allows, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("prompt_type", "must be a string, a list of strings, or token ids")
    if not value:
        raise PydanticCustomError("prompt_empty", "must hold at least one prompt or token")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_REPLIES:
        raise PydanticCustomError("too_many", "must hold at most {n} prompts", {"n": MAX_REPLIES})
    if all(isinstance(item, str) for item in value):
        return list(value)
    if all(isinstance(item, list) and item and _are_ids(item) for item in value):
        return list(value)
    raise PydanticCustomError(
        "prompt_type", "must be a string, a list of strings, a list of token ids, or a list of such lists"
    )


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)  # not isinstance: a bool is an int, but no token


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Prompts = Annotated[
    list[Prompt],
    PlainValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_REPLIES},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_REPLIES},
            ]
        }
    ),
]


class CompletionRequest(GenerationFields):
    """One or more raw prompts to continue. In their text control tokens may be written out."""

    prompt: Prompts
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=1)

    suffix: Any = Field(None, json_schema_extra={"enum": ["", None]})
    overflow: Any = Field(None, json_schema_extra={"enum": ["error", None]})  # raw prompts have no turns

    @field_validator("best_of", mode="before")
    @classmethod
    def _no_choosing(cls, value: object) -> object:
        return refuse_unless(type(value) is not int or value <= 1, value)

    @field_validator("overflow")
    @classmethod
    def _no_turns(cls, value: object) -> object:
        return refuse_unless(value in (None, "error"), value)

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: object) -> object:
        return refuse_unless(value is None or value == "", value)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.echo and self.logprobs is not None:
            message = "echo together with logprobs is not supported in this version."
            raise invalid(message, "echo", "unsupported_parameter")
        if len(self.prompt) * (self.n or 1) > MAX_REPLIES:
            raise invalid(f"n times the number of prompts must be at most {MAX_REPLIES}.", "n")
        return self


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class Completion(BaseModel):
    """A finished answer."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageBody
    timings: Timings
    explain: ExplanationBody | list[ExplanationBody | None] | None = None  # there if it was asked for
    approximate: bool | None = None  # true where a part of a prompt was moved, see reuse_moved
