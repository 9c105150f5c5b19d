"""The bodies of Ollama's chat and generate, as requests in this server's own terms."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from onceread.native.params import SamplingParams
from onceread.server.body import RequestModel, StreamedRequest, from_fields
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.text_schemas import CompletionRequest

_SAMPLING = {field.name for field in fields(SamplingParams)} - {"constraint", "order"} | {"stop"}
_Refused = Field(None, max_length=0)


class OllamaError(BaseModel):
    error: str


class OllamaReply(BaseModel):
    """A reply, or a part of it; the last part has the figures, in tokens and nanoseconds."""

    model_config = ConfigDict(extra="allow")
    model: str
    created_at: str
    done: bool


class OllamaFields(StreamedRequest):
    """What chat and generate share."""

    model: str | None = None
    stream: Annotated[bool | None, AfterValidator(lambda value: value is not False)] = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: dict[str, Any] = Field(default_factory=dict, description="Sampling, and num_predict.")
    think: bool | str | None = None
    keep_alive: float | str | None = None  # the model is always there

    @property
    def not_honoured(self) -> set[str]:
        return super().not_honoured | {
            f"options.{name}" for name in set(self.options) - _SAMPLING - {"num_predict"}
        }

    def shared(self) -> dict[str, Any]:
        """The fields of a request to either of the completion APIs."""
        said = {name: value for name, value in self.options.items() if name in _SAMPLING}
        limit = self.options.get("num_predict")
        said["max_tokens"] = None if limit in (-1, -2) else limit  # up to the context's limit
        if self.format not in (None, ""):
            said["json_schema"] = {"type": "object"} if self.format == "json" else self.format
        return said

    def chat(self, messages: list[dict[str, Any]], **more: Any) -> ChatCompletionRequest | None:
        """The request; None without messages, which is what clients send to have the model loaded."""
        if self.think is not None:
            level = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
            more["chat_template_kwargs"] = {"enable_thinking": bool(self.think), **level}
        said = {**self.shared(), **more, "messages": messages}
        return from_fields(ChatCompletionRequest, said) if messages else None


class Message(RequestModel):
    """What is not said here is as in other chats."""

    images: list[Any] | None = _Refused
    tool_calls: list[dict[str, Any]] | None = None


class OllamaChat(OllamaFields):
    """A conversation to continue."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    def asked(self) -> ChatCompletionRequest | None:
        """The request in this server's terms; None for none. Raises ApiError."""
        return self.chat([_message(said) for said in self.messages], tools=self.tools)


class OllamaGenerate(OllamaFields):
    """One prompt to answer, or with ``raw`` to go on with."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = Field(None, description="The prompt is read as it is, without the chat template.")
    images: list[Any] | None = _Refused
    template: str | None = _Refused
    suffix: str | None = _Refused
    context: list[int] | None = _Refused

    def asked(self) -> ChatCompletionRequest | CompletionRequest | None:
        """The request in this server's terms; None for none. Raises ApiError."""
        if self.raw and self.prompt:
            return from_fields(CompletionRequest, {**self.shared(), "prompt": self.prompt})
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.chat([*system, {"role": "user", "content": self.prompt}] if self.prompt else [])


def _message(said: Message) -> dict[str, Any]:
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    message = {names.get(key, key): value for key, value in said.model_dump(exclude_none=True).items()}
    for call in message.get("tool_calls", ()):
        function = call.get("function")
        if isinstance(function, dict) and not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments") or {})
    return {"content": "", **message}
