"""Tool calls as Mistral writes them, in the older form and the newer one.

``[TOOL_CALLS][{"name": …, "arguments": …}, …]`` and ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onceread.chat.callreader import ArgumentsReader, CallReader, object_end
from onceread.chat.jsonscan import NotJson
from onceread.chat.toolcalls import CallParser, Place, Shape, common_end

CALLS, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MAX_NAME = 400  # characters of a name with an id


@dataclass(frozen=True)
class Mistral:
    """The format: the older one has a list of objects, the newer one (``named``) each name by itself."""

    named: bool = False
    native: bool = True
    name: str = "mistral"
    marks: tuple[str, ...] = (CALLS, ID, ARGS)
    opens: str = CALLS
    short_ids: bool = True

    @property
    def shape(self) -> Shape:
        if self.named:
            return Shape(CALLS, ARGS, "")
        return Shape('{"name": "', '", "arguments": ', "}", begin=f"{CALLS}[", separator=", ", end="]")

    def parser(self, names: Collection[str], *, many: bool) -> CallParser:
        return MistralParser(None, many=many)

    def locate(self, text: str, name_at: int) -> Place | None:
        if self.named:
            args = text.find(ARGS, name_at)
            begin = args + len(ARGS)
            end = object_end(text, begin) if args >= 0 else None
            return None if end is None else Place((begin, begin), (begin, end))
        begin = text.rfind("{", 0, name_at)
        end = object_end(text, begin)
        if end is None:
            return None
        before = begin
        while before and (text[before - 1].isspace() or text[before - 1] in "[,"):
            before -= 1
        return Place((before, begin), (begin, end))


class MistralParser(CallParser):
    """Reads one reply, in either form."""

    _mark = ""  # the mark, until the first call behind it is complete
    _between = ""  # what was read since, or since the last object of a list

    def _look(self, last: bool) -> bool:
        at = self._text.find(CALLS)
        if at < 0:
            held = 0 if last else common_end(self._text, CALLS)
            text, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
            self._say(text)
            return False
        self._say(self._text[:at])
        self._text = self._text[at + len(CALLS) :]
        self._mark, self._between = CALLS, ""
        self._step = self._behind_mark
        return True

    def _behind_mark(self, last: bool) -> bool:
        """Which form is it?"""
        self._skip_space()
        if self._text.startswith("["):
            self._between += "["
            self._text = self._text[1:]
            self._step = self._in_list
        elif self._text.startswith("{"):
            self._open(self._mark + self._between, self._between, CallReader())
        elif self._text:
            self._step = self._name
        else:
            return self._not_a_call() if last else False
        return True

    def _in_list(self, last: bool) -> bool:
        """An object of a list, or its end."""
        self._skip_space()
        if self._text.startswith("{"):
            self._open(self._mark + self._between, self._between, CallReader())
            return True
        return self._not_a_call() if self._text or last else False

    def _name(self, last: bool) -> bool:
        """The newer form: everything up to the arguments."""
        at = self._text.find(ARGS)
        if at < 0 and len(self._text) <= _MAX_NAME and not last:
            return False
        name, _, own_id = self._text[: max(at, 0)].partition(ID)
        if at < 0 or at > _MAX_NAME:
            return self._not_a_call()
        try:
            reader = ArgumentsReader(name.strip(), own_id.strip() or None)
        except NotJson:
            return self._not_a_call()
        opening = self._mark + self._between + self._text[: at + len(ARGS)]
        self._text = self._text[at + len(ARGS) :]
        self._open(opening, "", reader)
        return True

    def _close(self, last: bool) -> bool:
        call = self._call
        assert call is not None
        in_list = "[" in call.before or "," in call.before
        if in_list and not self._text.lstrip() and not last:
            return False
        self._ended(call.reader.raw)
        self._mark = self._between = ""
        if not in_list or not self._many:
            return True
        self._skip_space()
        if self._text.startswith(","):
            self._between += ","
            self._text = self._text[1:]
            self._step = self._in_list
        elif self._text.startswith("]"):
            self._text = self._text[1:]
        else:
            self._space = self._between
        return True

    def _skip_space(self) -> None:
        rest = self._text.lstrip()
        self._between += self._text[: len(self._text) - len(rest)]
        self._text = rest

    def _not_a_call(self) -> bool:
        """What was read is content."""
        self._step = self._look
        self._say(self._mark + self._between)
        return True
