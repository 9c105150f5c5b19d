"""The bodies of ``/v1/embeddings``: what it takes and what it gives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from onceread.server.body import RequestModel

MAX_INPUTS = 2048

Input = str | list[int]


def _inputs(value: object) -> list[Input]:
    """All the shapes that the API allows, as a list of inputs."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise PydanticCustomError("input_type", "must be a string, a list of strings, or token ids")
    if not items:
        raise PydanticCustomError("input_empty", "must hold at least one input or token")
    if _are_ids(items):
        return [items]
    if len(items) > MAX_INPUTS:
        raise PydanticCustomError("too_many", "must hold at most {n} inputs", {"n": MAX_INPUTS})
    texts = all(isinstance(item, str) for item in items)
    if not texts and not all(isinstance(item, list) and _are_ids(item) for item in items):
        raise PydanticCustomError(
            "input_type", "must be a string, a list of strings, a list of token ids, or a list of such lists"
        )
    for index, item in enumerate(items):
        if not item:
            raise PydanticCustomError("input_empty", "the input at index {i} is empty", {"i": index})
    return list(items)


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)  # not isinstance: a bool is an int, but no token


_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Inputs = Annotated[
    list[Input],
    PlainValidator(_inputs),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_INPUTS},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_INPUTS},
            ]
        }
    ),
]


class EmbeddingRequest(RequestModel):
    """Texts, or token ids, each to become a vector."""

    input: Inputs
    model: str | None = Field(None, description="Any name: the server has one model for this.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64 is of little-endian 32-bit floats."
    )
    dimensions: int | None = Field(None, ge=1, description="Only the model's own number is taken.")
    user: str | None = None


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str  # a string with encoding_format "base64"


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """A vector of length 1 for each input, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
