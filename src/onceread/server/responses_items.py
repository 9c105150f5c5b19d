"""The items of the Responses API as clients send them, and in the one form in which they are stored and listed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from onceread.server.body import RequestModel, describe
from onceread.server.errors import ApiError, invalid

Item = dict[str, Any]

_MAX_ID = 256
_INPUT_TEXTS = ("input_text", "output_text", "text")


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(20)}"


def _parts(value: object, kinds: Sequence[str], *, refusals: bool = False) -> list[tuple[str, str]]:
    """(kind, text) of each part; the kind is ``text`` or ``refusal``."""
    if isinstance(value, str):
        return [("text", value)]
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "must be a string or a list of content parts")
    found = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            says = f"part {i} must be an object such as {{'type': '{kinds[0]}', 'text': ...}}"
            raise PydanticCustomError("content_type", "{says}", {"says": says})
        known = kind in kinds or (refusals and kind == "refusal")
        if not known:
            says = f"part {i} has the type {kind[:40]!r}; only text can be read: {kinds[0]}"
            raise PydanticCustomError("unsupported_content", "{says}", {"says": says})
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            says = f"part {i} must have a string as its text"
            raise PydanticCustomError("content_type", "{says}", {"says": says})
        found.append(("refusal" if kind == "refusal" else "text", text))
    return found


def _text_part(*kinds: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }


def _said_in(*parts: dict[str, Any]) -> WithJsonSchema:
    items = parts[0] if len(parts) == 1 else {"anyOf": list(parts)}
    return WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": items}]})


_REFUSAL = {
    "type": "object",
    "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
    "required": ["type", "refusal"],
}
Content = Annotated[
    list[tuple[str, str]],
    PlainValidator(lambda value: _parts(value, _INPUT_TEXTS, refusals=True)),
    _said_in(_text_part(*_INPUT_TEXTS), _REFUSAL),
]
Output = Annotated[
    list[tuple[str, str]],
    PlainValidator(lambda value: _parts(value, _INPUT_TEXTS)),
    _said_in(_text_part(*_INPUT_TEXTS)),
]
Id = Annotated[str, Field(max_length=_MAX_ID)]


class InputMessage(RequestModel):
    """A message, of a client or of a model."""

    type: Literal["message"] | None = None
    id: Id | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    def stored(self) -> Item:
        head: Item = {"id": self.id or new_id("msg"), "type": "message", "role": self.role}
        if self.role == "assistant":
            content: list[Item] = [
                {"type": "refusal", "refusal": text} if kind == "refusal" else output_text(text)
                for kind, text in self.content
            ]
        else:
            content = [{"type": "input_text", "text": text} for _, text in self.content]
        return {**head, "status": "completed", "content": content}


class InputFunctionCall(RequestModel):
    """A call that a model made."""

    type: Literal["function_call"]
    id: Id | None = None
    call_id: Id
    name: str
    arguments: str

    def stored(self) -> Item:
        return function_call(self.id or new_id("fc"), self.call_id, self.name, self.arguments)


class InputFunctionCallOutput(RequestModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    id: Id | None = None
    call_id: Id
    output: Output

    def stored(self) -> Item:
        head = {"id": self.id or new_id("fco"), "type": self.type, "call_id": self.call_id}
        return {**head, "output": _joined(self.output), "status": "completed"}


class InputCustomToolCall(RequestModel):
    """A call whose argument is a text of its own making. The model sees it as ``{"input": ...}``."""

    type: Literal["custom_tool_call"]
    id: Id | None = None
    call_id: Id
    name: str
    input: str

    def stored(self) -> Item:
        head = {"id": self.id or new_id("ctc"), "type": self.type, "call_id": self.call_id}
        return {**head, "name": self.name, "input": self.input, "status": "completed"}


class InputCustomToolCallOutput(RequestModel):
    """What such a call gave."""

    type: Literal["custom_tool_call_output"]
    id: Id | None = None
    call_id: Id
    output: Output

    def stored(self) -> Item:
        head = {"id": self.id or new_id("ctco"), "type": self.type, "call_id": self.call_id}
        return {**head, "output": _joined(self.output), "status": "completed"}


class ReasoningPart(RequestModel):
    """A part of what a model thought."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class InputReasoning(RequestModel):
    """What a model thought before the message or the call that follows."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = Field(None, description="Ignored: what is encrypted can't be read here.")

    def stored(self) -> Item:
        summary = [{"type": "summary_text", "text": part.text} for part in self.summary or ()]
        content = [part.text for part in self.content or ()]
        return {**reasoning(self.id or new_id("rs"), content), "summary": summary}


class ItemReference(RequestModel):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = None
    id: Id


InputItem: TypeAlias = (
    InputMessage
    | InputFunctionCall
    | InputFunctionCallOutput
    | InputCustomToolCall
    | InputCustomToolCallOutput
    | InputReasoning
    | ItemReference
)
_MODELS: dict[str, type[InputItem]] = {
    "message": InputMessage,
    "function_call": InputFunctionCall,
    "function_call_output": InputFunctionCallOutput,
    "custom_tool_call": InputCustomToolCall,
    "custom_tool_call_output": InputCustomToolCallOutput,
    "reasoning": InputReasoning,
    "item_reference": ItemReference,
}


def _parse(value: object) -> list[InputItem] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [InputMessage.model_validate({"role": "user", "content": value})] if value else _nothing()
    if not isinstance(value, list):
        raise PydanticCustomError("input_type", "must be a string or a list of items")
    return [_parse_item(item, i) for i, item in enumerate(value)] or _nothing()


def _nothing() -> Any:
    raise PydanticCustomError("empty", "must not be empty")


def _parse_item(value: object, index: int) -> InputItem:
    where = f"input[{index}]"
    if not isinstance(value, dict):
        raise invalid(f"{where}: must be an object.", where, "invalid_type")
    kind = value.get("type")
    if kind is None:
        kind = "item_reference" if "id" in value and "role" not in value else "message"
    if not isinstance(kind, str):
        raise invalid(f"{where}.type: must be a string.", f"{where}.type", "invalid_type")
    model = _MODELS.get(kind)
    if model is None:
        message = f"{where}: items of the type {kind[:40]!r} can't be read by this server."
        raise invalid(message, where, "unsupported_content")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _described(first, index) from None


def _described(first: ErrorDetails, index: int) -> ApiError:
    place: tuple[int | str, ...] = ("input", index, *first["loc"])
    return describe({**first, "loc": place})


Input = Annotated[
    list[InputItem] | None, PlainValidator(_parse, json_schema_input_type=str | list[InputItem] | None)
]
"""What clients send as ``input``; a string is a user's message. Raises ApiError for the first item that is wrong."""


def _joined(parts: Sequence[tuple[str, str]]) -> str:
    return "\n".join([text for _, text in parts])


def output_text(text: str, logprobs: Sequence[Item] = ()) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message(item_id: str, content: Sequence[Item], status: str) -> Item:
    """A model's message."""
    head = {"id": item_id, "type": "message", "role": "assistant", "status": status}
    return {**head, "content": list(content)}


def function_call(item_id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
    head = {"id": item_id, "type": "function_call", "call_id": call_id, "status": status}
    return {**head, "name": name, "arguments": arguments}


def reasoning(item_id: str, texts: Sequence[str], status: str = "completed") -> Item:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[Any]


class Refusal(BaseModel):
    type: Literal["refusal"]
    refusal: str


class InputText(BaseModel):
    type: Literal["input_text"]
    text: str


Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant", "user", "system", "developer"]
    status: Status
    content: list[OutputText | Refusal | InputText]


class FunctionCallItem(BaseModel):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningItem(BaseModel):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[ReasoningPart]
    content: list[ReasoningPart]


class CallOutputItem(BaseModel):
    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str
    status: Status


class CustomToolCallItem(BaseModel):
    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    status: Status


OutputItem: TypeAlias = MessageItem | FunctionCallItem | ReasoningItem
ListedItem: TypeAlias = OutputItem | CallOutputItem | CustomToolCallItem
