"""Tool calls as Hermes and Qwen write them: ``<tool_call>{"name": …, "arguments": …}</tool_call>``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onceread.chat.callreader import CallReader, object_end
from onceread.chat.toolcalls import CallParser, Place, Shape, common_end, space_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Hermes:
    """The format. Not ``native``: the template knows nothing of tools, and generic.py tells the model."""

    native: bool = True
    name: str = "hermes"
    marks: tuple[str, ...] = (OPEN, CLOSE)
    opens: str = OPEN
    short_ids: bool = False

    @property
    def shape(self) -> Shape:
        return Shape(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}", separator="\n")

    def parser(self, names: Collection[str], *, many: bool) -> CallParser:
        # The mark says that it is a call: a name that was not offered is the client's to answer.
        return HermesParser(None, many=many)

    def locate(self, text: str, name_at: int) -> Place | None:
        mark = text.rfind(OPEN, 0, name_at)
        begin = mark + len(OPEN)
        end = object_end(text, text.find("{", begin, name_at)) if mark >= 0 else None
        close = text.find(CLOSE, end) if end is not None else -1
        if close < 0 or text[end:close].strip():
            return None
        return Place((space_before(text, mark), mark), (begin, close))


class HermesParser(CallParser):
    """Reads one reply."""

    def _look(self, last: bool) -> bool:
        at = self._text.find(OPEN)
        if at < 0:
            held = 0 if last else common_end(self._text, OPEN)
            text, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
            self._say(text)
            return False
        self._say(self._text[:at])
        self._text = self._text[at + len(OPEN) :]
        self._open(OPEN, self._space, CallReader())
        return True

    def _close(self, last: bool) -> bool:
        call = self._call
        assert call is not None
        rest = self._text.lstrip()
        if not last and len(rest) < len(CLOSE) and CLOSE.startswith(rest):
            return False
        inside = call.lead + call.reader.raw
        if rest.startswith(CLOSE):
            inside += self._text[: len(self._text) - len(rest)]
            self._text = rest[len(CLOSE) :]
        self._ended(inside)
        return True
