"""One choice of a chat completion: a reply's text as it comes, told as content, reasoning and tool calls."""

from __future__ import annotations

from typing import Any

from onceread.chat.issued import Issued, IssuedCalls, new_call_id
from onceread.chat.toolcalls import (
    ArgumentsDelta,
    CallBegan,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reasoning,
    ReplyText,
)

Delta = dict[str, Any]


class ChoiceWriter:
    """Takes the text of a reply and gives deltas; at the end it has the whole message, too.

    In a stream a call that turns out to be none has been begun already. It stays without an end, its text
    follows as content, and it does not count for the finish reason.
    """

    def __init__(
        self, reader: ReplyText | None, issued: IssuedCalls, namespace: str, *, short_ids: bool, begun: str
    ) -> None:
        """``reader`` None: all is content. ``begun``: what the prompt has of the reply already."""
        self._reader = reader
        self._issued = issued
        self._namespace = namespace
        self._short_ids = short_ids
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._complete = False
        self._first = reader.feed(begun) if reader is not None and begun else []

    def write(self, text: str) -> list[Delta]:
        """More of the reply."""
        if self._reader is None:
            self._content.append(text)
            return [{"content": text}] if text else []
        events, self._first = [*self._first, *self._reader.feed(text)], []
        return self._deltas(events)

    def finish(self, reason: str) -> list[Delta]:
        """The reply ended, for the engine's ``reason``."""
        if self._reader is None:
            return []
        events, self._first = [*self._first, *self._reader.finish(cut=reason == "length")], []
        return self._deltas(events)

    def finish_reason(self, reason: str) -> str:
        """The API's reason: who was cut short made no calls."""
        return "tool_calls" if self._complete and reason == "stop" else reason

    @property
    def message(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for call in self._calls.values()
            ]
        return message

    def _deltas(self, events: list[Event]) -> list[Delta]:
        return [delta for event in events if (delta := self._delta(event))]

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case Content(text):
                self._content.append(text)
                return {"content": text}
            case Reasoning(text):
                self._reasoning.append(text)
                return {"reasoning_content": text}
            case CallBegan(index, name):
                call = self._calls[index] = _Call(name, new_call_id(short=self._short_ids))
                function = {"name": name, "arguments": ""}
                return {
                    "tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]
                }
            case ArgumentsDelta(index, text):
                self._calls[index].arguments.append(text)
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnded(index, wording):
                call = self._calls[index]
                self._complete = True
                issued = Issued(call.name, "".join(call.arguments), wording)
                self._issued.add(self._namespace, call.id, issued)
                return None
            case CallBroken(index):
                del self._calls[index]
                return None


class _Call:
    def __init__(self, name: str, call_id: str) -> None:
        self.name = name
        self.id = call_id
        self.arguments: list[str] = []
