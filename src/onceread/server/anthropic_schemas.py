"""The bodies of ``/v1/messages``: what it takes and what it gives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.server.anthropic_blocks import (
    Block,
    CacheControl,
    Content,
    TextBlock,
    TextContent,
    ToolUseBlock,
)
from onceread.server.body import RequestModel
from onceread.server.errors import invalid
from onceread.server.generation_fields import Share, refuse_unless
from onceread.server.session_hint import MAX_LENGTH
from onceread.server.tool_schemas import MAX_TOOLS, NAME

_MAX_INT = 2**31 - 1
_MAX_STOPS = 16

# Blocks of `user` and `assistant` messages that only the other may have.
_FOREIGN = {"user": ("thinking", "redacted_thinking", "tool_use"), "assistant": ("tool_result",)}


class Message(RequestModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Self:
        for block in self.blocks:
            foreign = self.role == "system" and block.type != "text"
            if foreign or block.type in _FOREIGN.get(self.role, ()):
                said = {"kind": block.type, "role": self.role}
                raise PydanticCustomError(
                    "block_role", "a message of the role {role} can't have {kind} blocks", said
                )
        return self

    @property
    def blocks(self) -> list[Block]:
        assert not isinstance(self.content, str)  # made blocks by its validator
        return self.content


class Tool(RequestModel):
    """A tool for the client to run. Those that Anthropic runs, or defines, have a type of their own."""

    type: str | None = Field(None, description="`custom`, or left out; tools of other types are skipped.")
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Honoured where tool_choice forces a call.")
    cache_control: CacheControl | None = None

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")

    @model_validator(mode="after")
    def _custom_ones_are_whole(self) -> Self:
        if self.is_custom:
            if self.name is None or self.input_schema is None:
                raise PydanticCustomError("missing", "a tool needs a name and an input_schema")
            _check_name(self.name)
        return self


class _Name(BaseModel):
    name: str = Field(pattern=NAME)


def _check_name(name: str) -> None:
    _Name.model_validate({"name": name})


class ToolChoice(RequestModel):
    """Whether tools are to be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="For the type `tool`.")
    disable_parallel_tool_use: bool | None = Field(None, description="At most one call in a reply.")

    @model_validator(mode="after")
    def _named_where_one_is_meant(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("missing", "of the type tool needs the tool's name")
        return self


class Thinking(RequestModel):
    """Sets the template's variable `enable_thinking`; templates that don't know it don't change."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=0, le=_MAX_INT, description="Ignored.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted`: thinking blocks come without their text."
    )


class OutputFormat(RequestModel):
    """The reply is JSON of this schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="The template's variable reasoning_effort; `high` is the most."
    )
    format: OutputFormat | None = None


class Metadata(RequestModel):
    user_id: str | None = None


Messages = Annotated[list[Message], FailFast()]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
StopSequence = Annotated[str, Field(min_length=1, max_length=1000)]


class CountTokensRequest(RequestModel):
    """What a message would be made of."""

    model: str | None = Field(None, description="Any name: the server has one model and answers with it.")
    messages: Messages = Field(min_length=1)
    system: TextContent | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="The older place of output_config.format.")
    cache_control: CacheControl | None = Field(
        None, description="A breakpoint at the end of the last message."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking. Not Anthropic's."
    )
    cache_salt: str | None = Field(
        None,
        max_length=256,
        description="Only requests with the same salt share what was read. Not Anthropic's.",
    )

    metadata: Metadata | None = Field(
        None, description="The user_id names the session: its paths are kept together."
    )

    # They say nothing to the model, or nothing that it could be told.
    service_tier: str | None = Field(None, description="Ignored.")
    speed: str | None = Field(None, description="Ignored.")
    inference_geo: str | None = Field(None, description="Ignored.")
    context_management: Any = Field(None, description="Ignored: nothing is taken out of the conversation.")
    diagnostics: Any = Field(None, description="Ignored.")

    # Without them the answer would be a wrong one.
    container: Any = Field(None, json_schema_extra={"type": "null"})
    mcp_servers: Any = Field(None, json_schema_extra={"type": ["array", "null"], "maxItems": 0})

    @field_validator("container")
    @classmethod
    def _no_container(cls, value: object) -> object:
        return refuse_unless(value is None, value)

    @field_validator("mcp_servers")
    @classmethod
    def _no_servers(cls, value: object) -> object:
        return refuse_unless(value is None or value == [], value)

    @model_validator(mode="after")
    def _final_message_can_be_continued(self) -> Self:
        if self.is_continued:
            if any(isinstance(block, ToolUseBlock) for block in self.messages[-1].blocks):
                message = (
                    "messages: the last one is the assistant's and calls a tool; its tool_result must follow."
                )
                raise invalid(message, "messages")
            if self.tool_choice is not None and self.tool_choice.type in ("any", "tool"):
                message = "tool_choice can't force a call where the last message is the assistant's, to be continued."
                raise invalid(message, "tool_choice")
        return self

    @property
    def is_continued(self) -> bool:
        """Does the conversation end with the beginning of the reply?"""
        return self.messages[-1].role == "assistant"

    @property
    def system_blocks(self) -> list[TextBlock]:
        assert not isinstance(self.system, str)  # made blocks by its validator
        return self.system or []

    @property
    def skipped_tools(self) -> list[str]:
        """Tools that are not offered to the model, by type."""
        return sorted({tool.type or "" for tool in self.tools or [] if not tool.is_custom})

    @property
    def session(self) -> str | None:
        """The client's name for its session. Where it is long, what tells sessions apart stands at its end."""
        return (self.metadata.user_id or "")[-MAX_LENGTH:] or None if self.metadata is not None else None

    @property
    def schema_format(self) -> OutputFormat | None:
        inside = self.output_config.format if self.output_config is not None else None
        return inside if inside is not None else self.output_format


class MessagesRequest(CountTokensRequest):
    """A conversation to continue."""

    max_tokens: int = Field(ge=0, le=_MAX_INT, description="0 reads the prompt and writes nothing.")
    stop_sequences: Annotated[list[StopSequence], Len(0, _MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy.")
    top_p: Share | None = None
    top_k: int | None = Field(None, ge=-1, le=_MAX_INT, description="0 or -1 switches it off.")
    min_p: Share | None = Field(None, description="Not Anthropic's.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="Not Anthropic's.")
    seed: int | None = Field(None, description="As in chat completions. Not Anthropic's.")


class UsageBody(BaseModel):
    """Tokens. The prompt's are those of the first three together."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextOut(BaseModel):
    type: Literal["text"] = "text"
    text: str
    citations: None = None


class ThinkingOut(BaseModel):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseOut(BaseModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageBody(BaseModel):
    """A finished answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Annotated[TextOut | ThinkingOut | ToolUseOut, Field(discriminator="type")]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: UsageBody
    approximate: bool | None = None  # true where a part of the prompt was moved: --reuse-moved
    dropped_messages: list[int] | None = None  # there with --overflow shift. Indices in ``messages``


class TokenCount(BaseModel):
    input_tokens: int


class AnthropicError(BaseModel):
    """What went wrong. Some errors bring more fields with them."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """Anthropic's envelope of every error."""

    type: Literal["error"] = "error"
    error: AnthropicError
    request_id: str
