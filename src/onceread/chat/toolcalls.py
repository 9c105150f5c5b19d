"""Tool calls in a model's text: what a parser of one format makes of it, piece by piece.

A format's own module says how calls begin and end. Whatever is not a call in that format is content, so nothing
a model writes can break an answer:

    text      Let me look.⏎<tool_call>⏎{"name": "f", "arguments": {"x": 1}}⏎</tool_call>
    events    Content       CallBegan ──────┘   ArgumentsDelta ──┘        CallEnded ──┘
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from onceread.chat.callreader import Reader
from onceread.chat.jsonscan import NotJson


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """What the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """Call ``index`` of this reply has a name. Its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of call ``index``'s arguments: together they are JSON, unless the reply ends before."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Wording:
    """How a model wrote a call, beyond what the call says."""

    inside: str  # what stands between the format's marks
    before: str = ""  # what stands between the mark and whatever came before it: white space, brackets
    own_id: str | None = None  # the id that the model gave it


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Call ``index`` is complete."""

    index: int
    wording: Wording


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What began as call ``index`` is none. All of its text follows as content."""

    index: int


Event = Reasoning | Content | CallBegan | ArgumentsDelta | CallEnded | CallBroken


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rendered call stands in a text: ``before`` up to its first mark, ``inside`` between its marks."""

    before: tuple[int, int]
    inside: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """How the calls of a reply are written, for grammars: ``{name}`` and the arguments between literals."""

    before: str  # up to the name
    between: str  # from the name to the arguments
    after: str  # behind the arguments
    begin: str = ""  # before the first call
    separator: str = ""
    end: str = ""  # behind the last call


class ToolFormat(Protocol):
    """A way in which models write tool calls."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings that its parser must see, also where the vocabulary has control tokens for them."""

    @property
    def opens(self) -> str:
        """The mark that nothing but a call begins with."""

    @property
    def native(self) -> bool:
        """Does the template tell the model of tools? Else generic.py does."""

    @property
    def short_ids(self) -> bool:
        """Must ids be nine letters and digits?"""

    @property
    def shape(self) -> Shape:
        """How calls are written, for grammars."""

    def parser(self, names: Collection[str], *, many: bool) -> CallParser:
        """For one reply of a model that was offered the tools ``names``; not ``many``: at most one call."""

    def locate(self, text: str, name_at: int) -> Place | None:
        """The call in a rendered conversation whose name begins at ``name_at``; None if it is written otherwise."""


def common_end(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``mark`` (and not all of it)."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0


def space_before(text: str, end: int) -> int:
    """Where the white space begins that ends at ``end``."""
    return len(text[:end].rstrip())


class ReplyText(ABC):
    """Takes the text of a reply as it comes, and gives events."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """More text."""

    @abstractmethod
    def trim_start(self) -> None:
        """White space before the first content is none of it. Said before anything is fed."""

    @abstractmethod
    def finish(self, *, cut: bool) -> list[Event]:
        """There is no more. ``cut``: the reply had no room to end; a call that is open then stays one."""


class PlainText(ReplyText):
    """A reply in which there are no calls."""

    def __init__(self) -> None:
        self._trims = False

    def trim_start(self) -> None:
        self._trims = True

    def feed(self, text: str) -> list[Event]:
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return [Content(text)] if text else []

    def finish(self, *, cut: bool) -> list[Event]:
        return []


@dataclass(slots=True)
class _Call:
    """A call that is being read."""

    index: int
    opening: str  # its mark, and whatever else belongs to it
    before: str
    reader: Reader
    began: bool = False
    lead: str = ""  # between the opening and the object

    @property
    def text(self) -> str:
        return self.opening + self.lead + self.reader.raw


class CallParser(ReplyText):
    """What the formats have in common: content, and calls that are one JSON object each.

    A format looks for the next call in :meth:`_look`, calls :meth:`_open` at its mark and says in
    :meth:`_close` what comes behind the object.
    """

    def __init__(self, names: Collection[str] | None, *, many: bool) -> None:
        """``names``: an object that names none of these is content; None takes any name."""
        self._names = None if names is None else frozenset(names)
        self._many = many
        self._text = ""  # not yet dealt with
        self._space = ""  # white space before it, which may belong to a call
        self._events: list[Event] = []
        self._calls = 0  # begun
        self._complete = 0
        self._trims = False
        self._call: _Call | None = None
        self._step: Callable[[bool], bool] = self._look

    def trim_start(self) -> None:
        self._trims = True

    def feed(self, text: str) -> list[Event]:
        self._text += text
        return self._run(last=False)

    def finish(self, *, cut: bool) -> list[Event]:
        events = self._run(last=True)
        call = self._call
        if call is not None and cut and call.began:
            return events
        if call is not None:
            self._break(call)
        self._say(self._text)
        if not self._complete and not self._trims:
            self._emit(self._space)
        return [*events, *self._taken()]

    # -- for formats ------------------------------------------------------

    @abstractmethod
    def _look(self, last: bool) -> bool:
        """Look for the next call in ``self._text``. False if more text is needed."""

    @abstractmethod
    def _close(self, last: bool) -> bool:
        """The object is complete: go on behind it, by :meth:`_ended`. False if more text is needed."""

    def _say(self, text: str) -> None:
        """This is content. White space at its end is kept back: it may stand before a call."""
        stripped = text.rstrip()
        if not stripped:
            self._space += text
            return
        if self._trims:
            self._trims = False
            self._emit(stripped.lstrip())
        else:
            self._emit(self._space + stripped)
        self._space = text[len(stripped) :]

    def _open(self, opening: str, before: str, reader: Reader) -> None:
        """A call's mark was read; its object should follow."""
        self._call = _Call(self._calls, opening, before, reader)
        self._step = self._find_object

    def _ended(self, inside: str) -> None:
        """The open call is complete, and was written so between its marks."""
        call = self._call
        assert call is not None
        self._complete += 1
        self._events.append(CallEnded(call.index, Wording(inside, call.before, call.reader.own_id)))
        self._call = None
        self._space = ""
        self._step = self._look if self._many else self._drop

    # -- steps ------------------------------------------------------------

    def _run(self, *, last: bool) -> list[Event]:
        while self._step(last):
            pass
        return self._taken()

    def _find_object(self, last: bool) -> bool:
        call = self._call
        assert call is not None
        rest = self._text.lstrip()
        call.lead += self._text[: len(self._text) - len(rest)]
        self._text = rest
        if not rest:
            return False
        if rest[0] == "{":
            self._step = self._read
        else:
            self._break(call)
        return True

    def _read(self, last: bool) -> bool:
        call = self._call
        assert call is not None
        reader, known, broken = call.reader, call.reader.fed, False
        try:
            reader.feed(self._text)
        except NotJson:
            broken = True
        self._text = self._text[reader.fed - known :]
        if not call.began and reader.name is not None:
            if self._names is not None and reader.name not in self._names:
                broken = True
            else:
                call.began = True
                self._calls += 1
                self._events.append(CallBegan(call.index, reader.name))
        if call.began and (text := reader.take_arguments()):
            self._events.append(ArgumentsDelta(call.index, text))
        if broken:
            self._break(call)
            return True
        if reader.done:
            self._step = self._close
        return reader.done or bool(self._text)

    def _drop(self, last: bool) -> bool:
        # There may be no other call, and what a model goes on with is a result that it made up.
        self._text = ""
        return False

    def _break(self, call: _Call) -> None:
        if call.began:
            self._events.append(CallBroken(call.index))
        self._call = None
        self._step = self._look
        self._say(call.text)

    def _emit(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events
