"""A reply's text as it comes, told as content, reasoning and tool calls, with ids for the calls."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Call:
    """A tool call that the model makes."""

    id: str
    name: str
    parts: list[str] = field(default_factory=list)
    ended: bool = False  # it is whole

    @property
    def arguments(self) -> str:
        """As the model wrote them: JSON once the call has ended."""
        return "".join(self.parts)


class ReplyReader:
    """Takes the text of one reply and gives events; at the end it has all of it, too.

    In a stream a call that turns out to be none has been begun already. Its text follows as content, and it is
    no longer among :attr:`calls`.
    """

    def __init__(
        self, reader: ReplyText | None, issued: IssuedCalls, namespace: str, *, short_ids: bool
    ) -> None:
        """``reader`` None: all is content."""
        self._reader = reader
        self._issued = issued
        self._namespace = namespace
        self._short_ids = short_ids
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: dict[int, Call] = {}  # by the index that the events have
        self.ids: dict[int, str] = {}  # also of calls that broke

    def write(self, text: str) -> list[Event]:
        """More of the reply."""
        if self._reader is None:
            self._content.append(text)
            return [Content(text)] if text else []
        return self._noted(self._reader.feed(text))

    def finish(self, reason: str) -> list[Event]:
        """The reply ended, for the engine's ``reason``."""
        if self._reader is None:
            return []
        return self._noted(self._reader.finish(cut=reason == "length"))

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def calls_tools(self, reason: str) -> bool:
        """Can tools be called, now that the reply has ended for the engine's ``reason``?

        A call that was cut can't. What was cut behind calls that are whole is no reason not to make them.
        """
        ended = [call.ended for call in self.calls.values()]
        return any(ended) and (reason == "stop" or all(ended))

    def _noted(self, events: list[Event]) -> list[Event]:
        for event in events:
            match event:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallBegan(index, name):
                    self.ids[index] = new_call_id(short=self._short_ids)
                    self.calls[index] = Call(self.ids[index], name)
                case ArgumentsDelta(index, text):
                    self.calls[index].parts.append(text)
                case CallEnded(index, wording):
                    call = self.calls[index]
                    call.ended = True
                    self._issued.add(self._namespace, call.id, Issued(call.name, call.arguments, wording))
                case CallBroken(index):
                    del self.calls[index]
        return events
