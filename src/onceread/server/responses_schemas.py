"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.server.body import RequestModel, describe
from onceread.server.constraint_fields import Schema
from onceread.server.errors import invalid
from onceread.server.generation_fields import MAX_TOP_LOGPROBS, GenerationFields, unsupported
from onceread.server.responses_items import Id, Input
from onceread.server.tool_schemas import MAX_TOOLS, NAME

_MAX_TOKENS = 2**31 - 1
_LOGPROBS = "message.output_text.logprobs"

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


class FunctionTool(RequestModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Honoured where tool_choice forces a call.")


class OtherTool(RequestModel):
    """A tool of another type. It is left out, and a header says so."""

    type: str


ResponseTool: TypeAlias = FunctionTool | OtherTool


def _tools(value: object) -> list[ResponseTool] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise PydanticCustomError("tools_type", "must be a list of tools")
    if len(value) > MAX_TOOLS:
        raise PydanticCustomError("too_many", "must have at most {n} tools", {"n": MAX_TOOLS})
    return [_tool(tool, i) for i, tool in enumerate(value)]


def _tool(value: object, index: int) -> ResponseTool:
    is_function = isinstance(value, dict) and value.get("type") == "function"
    try:
        return (FunctionTool if is_function else OtherTool).model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place: tuple[int | str, ...] = ("tools", index, *first["loc"])
        raise describe({**first, "loc": place}) from None


ResponseTools = Annotated[
    list[ResponseTool] | None,
    PlainValidator(
        _tools, json_schema_input_type=Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None
    ),
]


def _choice(value: object) -> Any:
    """The choice in the words of Chat Completions."""
    if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "function" and isinstance(value.get("name"), str):
        return _named(value["name"])
    if isinstance(value, dict) and kind == "allowed_tools" and isinstance(value.get("tools"), list):
        tools = [tool for tool in value["tools"] if isinstance(tool, dict) and tool.get("type") == "function"]
        names = [tool.get("name") for tool in tools]
        if not names or not all(isinstance(name, str) for name in names):
            raise PydanticCustomError("choice", "must allow at least one function, by its name")
        if value.get("mode") not in ("auto", "required"):
            raise PydanticCustomError("choice", "must have the mode auto or required")
        allowed = {"mode": value["mode"], "tools": [_named(name) for name in names]}
        return {"type": kind, "allowed_tools": allowed}
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise unsupported(f"names a tool of the type {kind[:40]!r}, and only functions can be called")
    raise PydanticCustomError("choice", "must be none, auto, required or an object that names a function")


def _named(name: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


_FUNCTION = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
    "required": ["type", "name"],
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": {"type": "object"}, "minItems": 1},
    },
    "required": ["type", "mode", "tools"],
}
ToolChoice = Annotated[
    Any,
    PlainValidator(_choice),
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required", None]}, _FUNCTION, _ALLOWED]}),
]


class TextFormat(RequestModel):
    """What the reply must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_the_schema(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise PydanticCustomError(
                "schema", "must have a schema if its type is json_schema, and only then"
            )
        return self

    def for_chat(self) -> dict[str, Any]:
        """As Chat Completions has it."""
        if self.type != "json_schema":
            return {"type": self.type}
        packed = {
            "name": self.name,
            "description": self.description,
            "schema": self.schema_,
            "strict": self.strict,
        }
        return {"type": self.type, "json_schema": packed}

    def shown(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        shown = {"type": self.type, "name": self.name or "schema", "schema": self.schema_}
        return {**shown, "strict": self.strict, "description": self.description}


class TextFields(RequestModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Ignored.")


class ReasoningFields(RequestModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description="For the chat template: `none` is enable_thinking: false, others are its reasoning_effort.",
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="Ignored.")


MetadataValue = Annotated[str, Field(max_length=512)]


def _refuse(value: object) -> object:
    if value is not None:
        raise unsupported("is not supported in this version")
    return value


Refused = Annotated[Any, PlainValidator(_refuse), WithJsonSchema({"type": "null"})]


def _not_in_background(value: object) -> object:
    if value is True:
        raise unsupported("true is not supported: a response is made while its client waits")
    if value is not None and value is not False:
        raise PydanticCustomError("bool_type", "must be false")
    return value


class ResponsesRequest(GenerationFields):
    """A conversation to go on with: new items, behind a stored response or on their own."""

    input: Input = Field(None, description="A string, which is the user's message, or a list of items.")
    instructions: str | None = Field(
        None, description="A system message before everything; not stored with it."
    )
    previous_response_id: Id | None = Field(None, description="Go on where this response ended.")
    store: bool | None = Field(None, description="Keep the response (default: true).")
    max_output_tokens: int | None = Field(None, ge=0, le=_MAX_TOKENS)
    tools: ResponseTools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, description="Ignored: no tools are called by this server.")
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    include: list[Include] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="`auto` drops the oldest turns where there are too many."
    )
    metadata: (
        Annotated[dict[Annotated[str, Field(max_length=64)], MetadataValue], Field(max_length=16)] | None
    ) = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )

    background: Annotated[
        Any, PlainValidator(_not_in_background), WithJsonSchema({"enum": [False, None]})
    ] = None
    conversation: Refused = None
    prompt: Refused = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.n not in (None, 1):
            raise invalid("n: a response is one reply.", "n")
        if (
            None not in (self.max_tokens, self.max_output_tokens)
            and self.max_tokens != self.max_output_tokens
        ):
            message = "max_output_tokens and max_tokens contradict each other; give one."
            raise invalid(message, "max_output_tokens")
        if self.text_format is not None and self.response_format is not None:
            raise invalid("text.format and response_format say the same; give one.", "response_format")
        return self

    @property
    def text_format(self) -> TextFormat | None:
        return self.text.format if self.text is not None else None

    @property
    def token_limit(self) -> int | None:
        return self.max_output_tokens if self.max_output_tokens is not None else self.max_tokens

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that there are here."""
        return [tool for tool in self.tools or [] if isinstance(tool, FunctionTool)]

    @property
    def skipped(self) -> list[str]:
        """The types of the others."""
        return sorted({tool.type for tool in self.tools or [] if isinstance(tool, OtherTool)})

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
