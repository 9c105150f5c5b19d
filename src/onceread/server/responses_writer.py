"""A reply as items of a response, and as the events in which a stream tells of them.

Only one item is open at a time, and each is told whole before the next one begins:

    output_item.added  content_part.added  output_text.delta …  output_text.done  content_part.done  output_item.done

A call is told of once it is whole, unless a grammar sees to it that it will be: what begins as a call may turn out
to be none, and an item of a stream can't be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onceread.chat.issued import Issued
from onceread.chat.toolcalls import (
    ArgumentsDelta,
    CallBegan,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from onceread.server.reply_reader import ReplyReader
from onceread.server.responses_items import Item, function_call, message, new_id, output_text, reasoning

StreamEvent = dict[str, Any]


@dataclass(slots=True)
class _Open:
    """The item that is being written."""

    kind: str  # message, reasoning, function_call
    id: str
    index: int
    parts: list[str] = field(default_factory=list)
    logprobs: list[Item] = field(default_factory=list)
    call: int = -1  # the reader's index
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)


class ResponseWriter:
    """Takes the text of one reply and gives events; at the end it has all items, too."""

    def __init__(self, reply: ReplyReader, *, calls_hold: bool) -> None:
        """``calls_hold``: a call that has begun can't turn out to be none."""
        self._reply = reply
        self._calls_hold = calls_hold
        self._sequence = 0
        self._open: _Open | None = None
        self._held: list[Item] = []  # log probabilities whose text has not come yet
        self.items: list[Item] = []
        self.calls: dict[str, Issued] = {}  # by call id: in which words the model wrote them

    def event(self, kind: str, /, **fields: Any) -> StreamEvent:
        """An event with the next number."""
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def write(self, text: str, logprobs: Sequence[Item] = ()) -> list[StreamEvent]:
        """More of the reply, and the log probabilities of its tokens."""
        self._held += logprobs
        return self._told(self._reply.write(text))

    def finish(self, reason: str) -> list[StreamEvent]:
        """The reply ended, for the engine's ``reason``."""
        events = self._told(self._reply.finish(reason))
        status = "incomplete" if reason == "length" else "completed"
        for index, call in self._reply.calls.items():
            if not call.ended and not (self._open and self._open.call == index):  # it was cut short
                events += self._begin("function_call", index)
                events += self._more(call.arguments)
        if self._open is None and not self.items:
            events += self._begin("message")
        return events + self._close(status)

    def _told(self, found: Sequence[Event]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for event in found:
            match event:
                case Content(text):
                    events += self._in("message") + self._more(text)
                case Reasoning(text):
                    self._held.clear()
                    events += self._in("reasoning") + self._more(text)
                case CallBegan(index):
                    self._held.clear()
                    if self._calls_hold:
                        events += self._begin("function_call", index)
                case ArgumentsDelta(_, text):
                    self._held.clear()
                    if self._calls_hold:
                        events += self._more(text)
                case CallEnded(index, wording):
                    call = self._reply.calls[index]
                    if not self._calls_hold:
                        events += self._begin("function_call", index)
                        events += self._more(call.arguments)
                    self.calls[call.id] = Issued(call.name, call.arguments, wording)
                    events += self._close("completed")
                case CallBroken(index):
                    if self._open is not None and self._open.call == index:  # told of, against all promises
                        events += self._close("incomplete")
        return events

    def _in(self, kind: str) -> list[StreamEvent]:
        return [] if self._open is not None and self._open.kind == kind else self._begin(kind)

    def _begin(self, kind: str, call: int = -1) -> list[StreamEvent]:
        events = self._close("completed")
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self._open = one = _Open(kind, new_id(prefix), len(self.items))
        if kind == "function_call":
            made = self._reply.calls[call]
            one.call, one.call_id, one.name = call, made.id, made.name
        events.append(
            self.event("response.output_item.added", output_index=one.index, item=self._item("in_progress"))
        )
        if kind != "function_call":
            events.append(self._part_event("response.content_part.added", part=self._part()))
        return events

    def _more(self, text: str) -> list[StreamEvent]:
        one = self._open
        assert one is not None
        one.parts.append(text)
        match one.kind:
            case "message":
                entries, self._held = self._held, []
                one.logprobs += entries
                return [self._part_event("response.output_text.delta", delta=text, logprobs=entries)]
            case "reasoning":
                return [self._part_event("response.reasoning_text.delta", delta=text)]
            case _:
                return (
                    [self._item_event("response.function_call_arguments.delta", delta=text)] if text else []
                )

    def _close(self, status: str) -> list[StreamEvent]:
        one = self._open
        if one is None:
            return []
        events: list[StreamEvent] = []
        if one.kind == "message":
            one.logprobs, self._held = one.logprobs + self._held, []
            done = {"text": one.text, "logprobs": one.logprobs}
            events.append(self._part_event("response.output_text.done", **done))
        elif one.kind == "reasoning":
            events.append(self._part_event("response.reasoning_text.done", text=one.text))
        else:
            event = "response.function_call_arguments.done"
            events.append(self._item_event(event, arguments=one.text, name=one.name))
        if one.kind != "function_call":
            events.append(self._part_event("response.content_part.done", part=self._part()))
        item = self._item(status)
        events.append(self.event("response.output_item.done", output_index=one.index, item=item))
        self.items.append(item)
        self._open = None
        return events

    def _item(self, status: str) -> Item:
        one = self._open
        assert one is not None
        begins = status == "in_progress"
        match one.kind:
            case "message":
                return message(one.id, [] if begins else [self._part()], status)
            case "reasoning":
                return reasoning(one.id, [] if begins else [one.text], status)
            case _:
                return function_call(one.id, one.call_id, one.name, one.text, status)

    def _part(self) -> Item:
        one = self._open
        assert one is not None
        if one.kind == "reasoning":
            return {"type": "reasoning_text", "text": one.text}
        return output_text(one.text, one.logprobs)

    def _item_event(self, kind: str, /, **fields: Any) -> StreamEvent:
        assert self._open is not None
        return self.event(kind, item_id=self._open.id, output_index=self._open.index, **fields)

    def _part_event(self, kind: str, /, **fields: Any) -> StreamEvent:
        return self._item_event(kind, content_index=0, **fields)
