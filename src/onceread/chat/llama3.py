"""Tool calls as Llama 3 writes them: the reply *is* ``{"name": …, "parameters": …}``, or begins so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onceread.chat.callreader import CallReader, object_end
from onceread.chat.toolcalls import CallParser, Place, Shape, common_end, space_before

TAG = "<|python_tag|>"


@dataclass(frozen=True)
class Llama3:
    """The format. Most templates of the family take one call for each message."""

    native: bool = True
    name: str = "llama3"
    marks: tuple[str, ...] = (TAG,)
    opens: str = TAG
    short_ids: bool = False

    @property
    def shape(self) -> Shape:
        return Shape('{"name": "', '", "parameters": ', "}", separator="; ")

    def parser(self, names: Collection[str], *, many: bool) -> CallParser:
        # Nothing marks a call, and other JSON can look like one.
        return Llama3Parser(names, many=many)

    def locate(self, text: str, name_at: int) -> Place | None:
        begin = text.rfind("{", 0, name_at)
        end = object_end(text, begin)
        return None if end is None else Place((space_before(text, begin), begin), (begin, end))


class Llama3Parser(CallParser):
    """Reads one reply."""

    _bare = True  # a call may begin here without a tag

    def _look(self, last: bool) -> bool:
        if self._bare:
            rest = self._text.lstrip()
            self._space += self._text[: len(self._text) - len(rest)]
            self._text = rest
            if rest.startswith("{"):
                self._bare = False
                self._open("", self._space, CallReader(strict=True))
                return True
            if rest.startswith(";") and self._complete:
                self._space += ";"
                self._text = rest[1:]
                return True
            if not rest or (not last and len(rest) < len(TAG) and TAG.startswith(rest)):
                return False
            self._bare = False
        at = self._text.find(TAG)
        if at < 0:
            held = 0 if last else common_end(self._text, TAG)
            text, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
            self._say(text)
            return False
        self._say(self._text[:at])
        self._text = self._text[at + len(TAG) :]
        self._open(TAG, self._space, CallReader(strict=True))
        return True

    def _close(self, last: bool) -> bool:
        call = self._call
        assert call is not None
        self._bare = True
        self._ended(call.reader.raw)
        return True
