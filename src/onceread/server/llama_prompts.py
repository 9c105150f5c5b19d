"""The shapes in which llama-server takes prompts, and their tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from onceread.server.errors import invalid
from onceread.server.state import Serving
from onceread.server.text_schemas import MAX_REPLIES

LlamaPrompt = str | list[int | str]
"""Text, or token ids and texts in a row."""

_SHAPES = "must be a string, a list of token ids and strings, an object with prompt_string, or a list of such prompts"


def _prompts(value: object) -> list[LlamaPrompt]:
    if not isinstance(value, list) or any(type(item) is int for item in value):
        return [_prompt(value)]
    if not value:
        raise PydanticCustomError("prompt_empty", "must hold at least one prompt or token")
    if len(value) > MAX_REPLIES:
        raise PydanticCustomError("too_many", "must hold at most {n} prompts", {"n": MAX_REPLIES})
    return [_prompt(item) for item in value]


def _prompt(value: object) -> LlamaPrompt:
    if isinstance(value, dict) and "prompt_string" in value:
        if value.get("multimodal_data") not in (None, []):
            message = "must not hold multimodal_data: this server reads text only"
            raise PydanticCustomError("unsupported_content", message)
        return _prompt(value["prompt_string"])
    return pieces(value)


def pieces(value: object) -> LlamaPrompt:
    """A text, or token ids and texts."""
    if isinstance(value, str):
        return value
    # Not isinstance for the ids: a bool is an int, but no token.
    if isinstance(value, list) and value and all(type(x) is int or isinstance(x, str) for x in value):
        return value
    raise PydanticCustomError("prompt_type", _SHAPES)


PIECES: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]},
            "minItems": 1,
        },
    ]
}
_OBJECT = {
    "type": "object",
    "properties": {"prompt_string": PIECES, "multimodal_data": {"type": ["array", "null"], "maxItems": 0}},
    "required": ["prompt_string"],
}
_ONE: dict[str, Any] = {"anyOf": [*PIECES["anyOf"], _OBJECT]}
_MANY = {"type": "array", "items": _ONE, "minItems": 1, "maxItems": MAX_REPLIES}
LlamaPrompts = Annotated[
    list[LlamaPrompt], PlainValidator(_prompts), WithJsonSchema({"anyOf": [*_ONE["anyOf"], _MANY]})
]


def llama_prompt_tokens(prompt: LlamaPrompt, serving: Serving) -> tuple[int, ...]:
    """The tokens, the same as those of ``/v1/completions`` for the same text.

    What the model wants around a text is added where the prompt begins with text. Raises ApiError, ChatError.
    """
    if isinstance(prompt, str):
        return serving.tokenizer.raw(prompt)
    tokens: list[int] = []
    for i, piece in enumerate(prompt):
        if isinstance(piece, int):
            tokens.append(checked(piece, serving, "prompt"))
        elif i == 0 and (piece or serving.model.vocab.add_bos):
            tokens += serving.tokenizer.raw(piece)
        else:
            tokens += serving.tokenizer.written(piece)
    if not tokens:
        raise invalid("prompt: there is nothing in it.", "prompt")
    return tuple(tokens)


def checked(token: int, serving: Serving, param: str) -> int:
    """``token``, if the model has it. Raises ApiError."""
    size = serving.model.vocab.size
    if not 0 <= token < size:
        shown = token if abs(token) < 10**12 else "a huge number"
        raise invalid(f"{param}: {shown} is not a token id of this model (0 to {size - 1}).", param)
    return token
