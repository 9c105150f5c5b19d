"""One choice of a chat completion, in deltas and whole."""

from __future__ import annotations

from typing import Any

from onceread.chat.toolcalls import ArgumentsDelta, CallBegan, Content, Event, Reasoning
from onceread.server.reply_reader import ReplyReader

Delta = dict[str, Any]


class ChoiceWriter:
    """What a :class:`ReplyReader` finds, in OpenAI's words."""

    def __init__(self, reply: ReplyReader) -> None:
        self._reply = reply

    def write(self, text: str) -> list[Delta]:
        """More of the reply."""
        return self._deltas(self._reply.write(text))

    def finish(self, reason: str) -> list[Delta]:
        """The reply ended, for the engine's ``reason``."""
        return self._deltas(self._reply.finish(reason))

    def finish_reason(self, reason: str) -> str:
        """The API's reason."""
        return "tool_calls" if self._reply.calls_tools(reason) else reason

    @property
    def message(self) -> dict[str, Any]:
        reply = self._reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls.values()
            ]
        return message

    def _deltas(self, events: list[Event]) -> list[Delta]:
        return [delta for event in events if (delta := self._delta(event))]

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegan(index, name):
                return {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": self._reply.ids[index],
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }
                    ]
                }
            case ArgumentsDelta(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return None
