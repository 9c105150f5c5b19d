"""From Anthropic's messages to the chat request that they mean, and to where their cache breakpoints lie in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceread.server.anthropic_blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from onceread.server.anthropic_schemas import CountTokensRequest, Message, MessagesRequest
from onceread.server.body import from_fields
from onceread.server.chat_schemas import ChatCompletionRequest

SEPARATOR = "\n"  # between the text blocks of one message, as between the parts of OpenAI's
MOST_CUTS = 4  # breakpoints of one request
_CHANGES = "x-anthropic-billing-header:"  # begins a block that differs in every request, and says nothing


class Cut(NamedTuple):
    """A place in a conversation: behind ``messages``, of the last of which only so much counts."""

    messages: int
    characters: int = 0  # of its content
    calls: int = 0  # of its tool calls


@dataclass(slots=True)
class Conversation:
    """What Anthropic's messages are in OpenAI's words."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)  # of each: its index in the client's list
    cuts: list[Cut] = field(default_factory=list)  # where cache breakpoints are, ascending
    _said: list[str] = field(default_factory=list)  # of the last message's content, while it is made
    _length: int = 0  # in characters

    @classmethod
    def of(cls, body: CountTokensRequest) -> Conversation:
        made = cls()
        made._add_system(body.system_blocks)
        if any(tool.cache_control for tool in body.tools or []):
            made._cut()  # most templates put the tools into the system message, at its end
        for index, message in enumerate(body.messages):
            made._add(index, message)
        if body.cache_control is not None:
            made._cut()
        made._close()
        made.cuts = sorted(set(made.cuts))[-MOST_CUTS:]
        return made

    def dropped(self, indices: tuple[int, ...]) -> tuple[int, ...]:
        """Which of the client's messages these are."""
        return tuple(sorted({origin for i in indices if (origin := self.origins[i]) is not None}))

    def _add_system(self, blocks: list[TextBlock]) -> None:
        blocks = [block for block in blocks if not block.text.lstrip().startswith(_CHANGES)]
        if any(block.text for block in blocks):
            self._open("system", None)
            self._say(blocks, SEPARATOR)

    def _add(self, index: int, message: Message) -> None:
        texts = [block for block in message.blocks if isinstance(block, TextBlock)]
        results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
        if message.role == "assistant":
            self._add_reply(index, message.blocks)
            return
        for block in results:
            said = SEPARATOR.join([part.text for part in _parts(block)])
            self._open("tool", index, tool_call_id=block.tool_use_id)
            self._said = [f"Error: {said}" if block.is_error else said]
            self._length = len(self._said[0])
            if block.cache_control is not None or any(part.cache_control for part in _parts(block)):
                self._cut()
        if texts or not results:
            # Messages of one role in a row are one: some templates take no others.
            if not self.messages or self.messages[-1]["role"] != message.role:
                self._open(message.role, index)
            self._say(texts, SEPARATOR)

    def _add_reply(self, index: int, blocks: list[Block]) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._open("assistant", index)
        reply = self.messages[-1]
        for block in blocks:
            match block:
                case TextBlock():
                    self._say([block], "")
                case ThinkingBlock():
                    before = reply.get("reasoning_content", "")
                    reply["reasoning_content"] = (
                        before + SEPARATOR + block.thinking if before else block.thinking
                    )
                case ToolUseBlock():
                    arguments = json.dumps(block.input, ensure_ascii=False)
                    function = {"name": block.name, "arguments": arguments}
                    call = {"id": block.id, "type": "function", "function": function}
                    reply.setdefault("tool_calls", []).append(call)
                    if block.cache_control is not None:
                        self._cut()
                case _:
                    pass

    def _open(self, role: str, index: int | None, **more: Any) -> None:
        self._close()
        self.messages.append({"role": role, "content": "", **more})
        self.origins.append(index)

    def _say(self, blocks: list[TextBlock], separator: str) -> None:
        # Joined once: a body can have a hundred thousand blocks, and messages that are one.
        for block in blocks:
            if self._length:
                self._said.append(separator)
                self._length += len(separator)
            self._said.append(block.text)
            self._length += len(block.text)
            if block.cache_control is not None:
                self._cut()

    def _close(self) -> None:
        """The last message has all of its content."""
        if self.messages and self._said:
            self.messages[-1]["content"] = "".join(self._said)
        self._said, self._length = [], 0

    def _cut(self) -> None:
        """There is a breakpoint behind what was added so far."""
        if not self.messages:
            self.cuts.append(Cut(0))
            return
        calls = self.messages[-1].get("tool_calls", ())
        self.cuts.append(Cut(len(self.messages), self._length, len(calls)))


def chat_request(body: CountTokensRequest, conversation: Conversation) -> ChatCompletionRequest:
    """What ``body`` asks, as a chat request. Raises ApiError."""
    fields: dict[str, Any] = {
        "messages": conversation.messages,
        "continue_final_message": body.is_continued or None,
        "chat_template_kwargs": _variables(body),
        "cache_salt": body.cache_salt,
        **_tools(body),
    }
    if (wanted := body.schema_format) is not None:
        named = {"name": "output", "schema": wanted.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    if isinstance(body, MessagesRequest):
        same = ("max_tokens", "stream", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed")
        fields |= {name: getattr(body, name) for name in same}
        fields["stop"] = body.stop_sequences
    return from_fields(ChatCompletionRequest, fields)


def _parts(block: ToolResultBlock) -> list[TextBlock]:
    assert not isinstance(block.content, str)  # made blocks by its validator
    return block.content or []


def _variables(body: CountTokensRequest) -> dict[str, Any] | None:
    asked: dict[str, Any] = {}
    if body.thinking is not None:
        asked["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        asked["reasoning_effort"] = effort if effort in ("low", "medium") else "high"
    return {**asked, **(body.chat_template_kwargs or {})} or None


def _tools(body: CountTokensRequest) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": tool.strict,
            },
        }
        for tool in body.tools or []
        if tool.is_custom
    ]
    fields: dict[str, Any] = {"tools": tools or None}
    if (choice := body.tool_choice) is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        forms = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        # Where all tools were skipped there is nothing to choose between, and `auto` says nothing.
        fields["tool_choice"] = forms[choice.type]
        fields["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
    return fields
