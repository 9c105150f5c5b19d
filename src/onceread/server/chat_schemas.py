"""The bodies of ``/v1/chat/completions``: what it takes and what it gives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    FailFast,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.chat.content import join_content, parse_arguments
from onceread.chat.errors import ContentInvalid, ContentUnsupported
from onceread.engine.request import FinishReason
from onceread.server.body import RequestModel
from onceread.server.errors import invalid
from onceread.server.explain import ExplanationBody
from onceread.server.generation_fields import MAX_TOP_LOGPROBS, GenerationFields, refuse_unless
from onceread.server.tool_schemas import (
    AllowedChoice,
    NamedChoice,
    Tool,
    ToolCallBody,
    ToolChoice,
    Tools,
    check_choice,
    chosen_names,
)
from onceread.server.usage import Timings, UsageBody

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def _content(value: object) -> str | None:
    if value is None:
        return None
    try:
        return join_content(value)
    except ContentUnsupported as error:
        raise PydanticCustomError("unsupported_content", "{says}", {"says": str(error)}) from None
    except ContentInvalid as error:
        raise PydanticCustomError("content_type", "{says}", {"says": str(error)}) from None


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Content = Annotated[
    str | None,
    PlainValidator(_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]}),
]


class FunctionCall(RequestModel):
    """A function that the assistant called, its arguments as JSON in a string."""

    name: str
    arguments: str


class ToolCall(RequestModel):
    """A tool that the assistant called in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    """One message. Fields of other names are the chat template's to use."""

    role: Role
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _content_is_there(self) -> Self:
        if self.content is None and self.role != "assistant":
            message = "content is required in a message of the role {role}"
            raise PydanticCustomError("missing", message, {"role": self.role})
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as templates know it: no nulls, no empty lists, and content always a string."""
        fields = self.model_dump(exclude_none=True)
        if not self.tool_calls:
            fields.pop("tool_calls", None)
        for call in fields.get("tool_calls", []):
            call["function"]["arguments"] = parse_arguments(call["function"]["arguments"])
        return {**fields, "content": self.content or ""}


class ChatCompletionRequest(GenerationFields):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], FailFast()] = Field(min_length=1)
    max_completion_tokens: int | None = Field(
        None, ge=0, le=2**31 - 1, description="The newer name of max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn (default: true).")
    continue_final_message: bool | None = Field(
        None, description="Go on where the last message stops (default: true if that is the assistant's)."
    )
    overflow: Literal["error", "shift"] | None = Field(
        None, description="What to do at the context's limit: with `shift` the oldest turns are dropped."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )

    reasoning_effort: str | None = Field(
        None,
        max_length=20,
        description="`none` is enable_thinking: false; others are a variable of the template.",
    )

    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(
        None, description="`required` and a named function make the reply a call, by a grammar."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="More than one call in a reply (default: true)."
    )
    reasoning_format: Literal["auto", "deepseek", "none"] | None = Field(
        None, description="`none` leaves what the model thinks in the content, with its tags."
    )

    functions: Any = Field(None, json_schema_extra={"type": ["array", "null"], "maxItems": 0})
    function_call: Any = Field(None, json_schema_extra={"enum": ["none", "auto", None]})
    modalities: Any = Field(None, json_schema_extra={"type": ["array", "null"], "items": {"const": "text"}})
    audio: Any = Field(None, json_schema_extra={"type": "null"})

    @field_validator("functions")
    @classmethod
    def _no_functions(cls, value: object) -> object:
        return refuse_unless(value is None or value == [], value)

    @field_validator("function_call")
    @classmethod
    def _no_choice(cls, value: object) -> object:
        return refuse_unless(value in (None, "none", "auto"), value)

    @field_validator("modalities")
    @classmethod
    def _only_text_comes_out(cls, value: object) -> object:
        return refuse_unless(value is None or value == ["text"], value)

    @field_validator("audio")
    @classmethod
    def _no_audio(cls, value: object) -> object:
        return refuse_unless(value is None, value)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs is only allowed with logprobs: true.", "top_logprobs")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            message = "max_tokens and max_completion_tokens contradict each other; give one."
            raise invalid(message, "max_tokens")
        if self.continue_final_message:
            if self.add_generation_prompt:
                message = "continue_final_message and add_generation_prompt exclude each other."
                raise invalid(message, "continue_final_message")
            if self.messages[-1].role != "assistant":
                message = "continue_final_message needs a last message of the role assistant."
                raise invalid(message, "continue_final_message")
        check_choice(self.tools or [], self.tool_choice)
        if self.forces_call:
            given = {constraint.param for constraint in self._given()} - {"response_format"}
            for name in (*given, *(["continue_final_message"] if self.continue_final_message else [])):
                raise invalid(f"{name} can't be used where tool_choice forces a call.", name)
        return self

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template; what is said by its own name goes first."""
        effort = self.reasoning_effort
        said = {} if effort is None else {"enable_thinking": effort != "none", "reasoning_effort": effort}
        return {**said, **(self.chat_template_kwargs or {})}

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def forces_call(self) -> bool:
        """Must the reply be a call?"""
        if isinstance(self.tool_choice, AllowedChoice):
            return self.tool_choice.allowed_tools.mode == "required"
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedChoice)

    @property
    def many_calls(self) -> bool:
        """May a reply make more than one call? Who names a function wants one, unless they say otherwise."""
        if self.parallel_tool_calls is not None:
            return self.parallel_tool_calls
        return not isinstance(self.tool_choice, NamedChoice)

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the reply may call."""
        if self.tool_choice == "none":
            return []
        chosen = chosen_names(self.tool_choice)
        return [tool for tool in self.tools or [] if chosen is None or tool.function.name in chosen]

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to tell of at each token; None without logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def begun(self) -> str:
        return (self.messages[-1].content or "") if self.continues else ""

    @property
    def continues(self) -> bool:
        """Does the reply go on where the last message stops?"""
        if self.continue_final_message is not None:
            return self.continue_final_message
        last = self.messages[-1]
        begun = last.role == "assistant" and bool(last.content) and not last.tool_calls
        return begun and not self.add_generation_prompt and not self.forces_call

    @property
    def opens_turn(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continues
        return self.add_generation_prompt


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ContentLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None  # there if the model thought
    tool_calls: list[ToolCallBody] | None = None  # there if it calls tools


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | Literal["tool_calls"]


class ChatCompletion(BaseModel):
    """A finished answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: Timings
    explain: ExplanationBody | None = None  # there if it was asked for
    approximate: bool | None = None  # true where a part of the prompt was moved, see reuse_moved
    dropped_messages: list[int] | None = None  # there with overflow: shift. Indices in ``messages``
