"""One reply in Anthropic's words: content blocks, in events and whole."""

from __future__ import annotations

import json
from typing import Any

from onceread.chat.callreader import parse_object
from onceread.chat.toolcalls import CallEnded, Content, Event, Reasoning
from onceread.server.event_stream import sse
from onceread.server.reply_reader import Call, ReplyReader

SIGNATURE = "b25jZXJlYWQ="
"""Of thinking blocks. Clients send it back, and some want one that is not empty; here nobody looks at it."""


class BlockWriter:
    """What a :class:`ReplyReader` finds, as blocks that come one after the other.

    A call's block begins when the call is complete: nothing can take back a block that was begun, and what looks
    like a call may turn out to be text.
    """

    def __init__(self, reply: ReplyReader, *, shows_thinking: bool = True) -> None:
        self._reply = reply
        self._shows_thinking = shows_thinking
        self._space = ""  # text that would begin a block, of white space only
        self._told: set[int] = set()  # calls that have a block
        self._out: list[bytes] = []
        self.blocks: list[dict[str, Any]] = []  # the last may be open
        self._open = False

    def write(self, text: str) -> list[bytes]:
        """More of the reply, as events."""
        return self._events(self._reply.write(text))

    def finish(self, reason: str) -> list[bytes]:
        """The reply ended, for the engine's ``reason``."""
        out = self._events(self._reply.finish(reason))
        for index, call in self._reply.calls.items():
            if index not in self._told:  # the limit cut it
                self._call(call)
        self._close()
        return [*out, *self._taken()]

    def stop_reason(self, reason: str, stop_string: str | None) -> str:
        """The API's reason."""
        if stop_string is not None:
            return "stop_sequence"
        if self._reply.calls_tools(reason):
            return "tool_use"
        return "max_tokens" if reason == "length" else "end_turn"

    def _events(self, events: list[Event]) -> list[bytes]:
        for event in events:
            match event:
                case Content(text):
                    self._text(text)
                case Reasoning(text):
                    self._thinking(text)
                case CallEnded(index):
                    self._told.add(index)
                    self._call(self._reply.calls[index])
                case _:
                    pass
        return self._taken()

    def _text(self, text: str) -> None:
        if not self._is_open("text"):
            text, self._space = self._space + text, ""
            if not text.strip():  # Anthropic's API has no such blocks, and its clients may not send them back
                self._space = text
                return
            self._begin({"type": "text", "text": "", "citations": None})
        self.blocks[-1]["text"] += text
        self._delta({"type": "text_delta", "text": text})

    def _thinking(self, text: str) -> None:
        if not self._is_open("thinking"):
            self._begin({"type": "thinking", "thinking": "", "signature": ""})
        if self._shows_thinking:
            self.blocks[-1]["thinking"] += text
            self._delta({"type": "thinking_delta", "thinking": text})

    def _call(self, call: Call) -> None:
        self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        made = parse_object(call.arguments)
        # Whole ones are written anew: what models write as JSON is not always what all parsers take.
        text = call.arguments if made is None else json.dumps(made, ensure_ascii=False)
        self.blocks[-1]["input"] = made or {}
        if text:
            self._delta({"type": "input_json_delta", "partial_json": text})
        self._close()

    def _is_open(self, kind: str) -> bool:
        return self._open and self.blocks[-1]["type"] == kind

    def _begin(self, block: dict[str, Any]) -> None:
        self._close()
        self._out.append(self._event("content_block_start", content_block=block, index=len(self.blocks)))
        self.blocks.append(block)
        self._open = True

    def _delta(self, delta: dict[str, Any]) -> None:
        self._out.append(self._event("content_block_delta", delta=delta))

    def _close(self) -> None:
        if not self._open:
            return
        if self.blocks[-1]["type"] == "thinking":
            self.blocks[-1]["signature"] = SIGNATURE
            self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._out.append(self._event("content_block_stop"))
        self._open = False

    def _event(self, name: str, index: int | None = None, **fields: Any) -> bytes:
        index = len(self.blocks) - 1 if index is None else index
        return sse({"type": name, "index": index, **fields}, name)

    def _taken(self) -> list[bytes]:
        out, self._out = self._out, []
        return out
