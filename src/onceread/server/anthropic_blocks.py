"""Content blocks of Anthropic's messages: those that can be read, and a word for each of those that can't."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field, TypeAdapter, WrapValidator
from pydantic_core import PydanticCustomError

from onceread.server.body import RequestModel

_MAX_SHOWN = 40


class CacheControl(RequestModel):
    """A breakpoint: what stands before it will be needed again."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(RequestModel):
    """What the model thought. The signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(RequestModel):
    """What another server's model thought. It says nothing that could be read, and is left out."""

    type: Literal["redacted_thinking"]
    data: str | None = None


class ToolUseBlock(RequestModel):
    """A tool that the assistant called."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


def _picked(value: object, models: dict[str, type[BaseModel]]) -> BaseModel:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise PydanticCustomError("block_type", "must be an object such as {example}", {"example": _EXAMPLE})
    if kind not in models:
        # Braces in what a client wrote are not a template's.
        says = f"a block of the type {kind[:_MAX_SHOWN]!r} can't be read here; only {_listed(models)} can"
        raise PydanticCustomError("unsupported_content", "{says}", {"says": says})
    return models[kind].model_validate(value)


def _listed(models: dict[str, type[BaseModel]]) -> str:
    names = list(models)
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


_EXAMPLE = "{'type': 'text', 'text': ...}"
_TEXT_ONLY: dict[str, type[BaseModel]] = {"text": TextBlock}

# What is wrong with a block is said about the block it wants to be, not about all that it is not.
OneTextBlock = Annotated[TextBlock, WrapValidator(lambda value, _: _picked(value, _TEXT_ONLY))]
_text_blocks = TypeAdapter(Annotated[list[OneTextBlock], FailFast()])


def _as_text(value: object) -> list[TextBlock]:
    if isinstance(value, str):
        return [TextBlock(type="text", text=value)]
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "must be a string or a list of content blocks")
    return _text_blocks.validate_python(value)


TextContent = Annotated[str | list[TextBlock], WrapValidator(lambda value, _: _as_text(value))]
"""A string or text blocks; read, it is always blocks."""


class ToolResultBlock(RequestModel):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


_ALL: dict[str, type[BaseModel]] = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
OneBlock = Annotated[
    Annotated[Block, Field(discriminator="type")], WrapValidator(lambda value, _: _picked(value, _ALL))
]
_blocks = TypeAdapter(Annotated[list[OneBlock], FailFast()])


def _as_blocks(value: object) -> list[Block]:
    if isinstance(value, str):
        return [TextBlock(type="text", text=value)]
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "must be a string or a list of content blocks")
    return _blocks.validate_python(value)


Content = Annotated[str | list[OneBlock], WrapValidator(lambda value, _: _as_blocks(value))]
"""A string or blocks; read, it is always blocks."""
