"""Reads one tool call as models write it, ``{"name": "f", "arguments": {...}}``, while it is being written."""

from __future__ import annotations

import json
from typing import Any, Protocol

from onceread.chat.jsonscan import JsonScanner, NotJson

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("name", "id", "type")
_MAX_NAME = 256


class Reader(Protocol):
    """Reads one call of some form."""

    name: str | None
    own_id: str | None  # the id that the model gave the call, if it did

    @property
    def raw(self) -> str:
        """What was fed so far."""

    @property
    def fed(self) -> int:
        """How many characters that is."""

    @property
    def done(self) -> bool:
        """Is the call complete?"""

    def feed(self, text: str) -> int:
        """Take ``text`` up to the call's end, or its name's; how many characters that were. Raises NotJson.

        What raises it is a part of :attr:`raw`, and nothing is to be fed after it.
        """

    def take_arguments(self) -> str:
        """The arguments' text since the last call."""


class CallReader:
    """Fed the characters of an object from its ``{`` on. The fields may come in any order."""

    def __init__(self, *, strict: bool = False) -> None:
        """``strict``: fields that are no part of a call raise NotJson."""
        self._strict = strict
        self._scan = JsonScanner()
        self._raw: list[str] = []
        self._key = ""  # of the value that is being read
        self._kept: list[str] | None = None  # a key's or a value's text that is wanted whole
        self._in_value = self._in_scalar = False
        self._streams = False  # the value is the object of arguments: its text is handed on at once
        self._held = ""  # of a number or a literal whose end is not yet seen
        self._arguments: list[str] = []
        self._has_arguments = False
        self.name: str | None = None
        self.own_id: str | None = None

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def fed(self) -> int:
        return len(self._raw)

    @property
    def done(self) -> bool:
        return self._scan.done

    def feed(self, text: str) -> int:
        named = self.name
        for at, c in enumerate(text):
            self._raw.append(c)
            self._push(c)
            if self._scan.done:
                self._end()
                return at + 1
            if self.name is not named:
                return at + 1
        return len(text)

    def take_arguments(self) -> str:
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _push(self, c: str) -> None:
        scan = self._scan
        was_string, wants_value = scan.in_string, scan.expects_value and scan.depth == 1
        scan.push(c)
        if self._in_value:
            self._value_goes_on(c)
        elif wants_value and not c.isspace():
            self._value_begins(c)
        elif scan.depth == 1 and scan.in_key:
            if scan.in_string and not was_string:
                self._kept = [c]
            elif was_string and self._kept is not None:
                self._kept.append(c)
                if not scan.in_string:
                    self._key = _string("".join(self._kept))
                    self._kept = None
                    if self._strict and self._key not in (*_ARGUMENTS, *_OTHERS):
                        raise NotJson

    def _value_begins(self, c: str) -> None:
        self._in_value, self._in_scalar = True, self._scan.in_scalar
        self._kept = None
        if self._key in _ARGUMENTS:
            if self._has_arguments:
                raise NotJson  # which of them?
            self._has_arguments = True
            self._streams = c == "{"
            if self._streams:
                self._arguments.append(c)
                return
        if self._key in ("name", "id", *_ARGUMENTS):
            self._kept = [c]

    def _value_goes_on(self, c: str) -> None:
        scan = self._scan
        if self._in_scalar:
            if scan.in_scalar:
                if self._kept is not None:
                    self._kept.append(c)
                return
            self._value_ends()
            return
        if self._streams:
            self._stream(c)
        elif self._kept is not None:
            self._kept.append(c)
        if scan.depth == 1 and not scan.in_string:
            self._value_ends()

    def _stream(self, c: str) -> None:
        if self._scan.in_scalar:
            self._held += c  # it may still turn out to be nothing that JSON knows
            return
        self._arguments.append(self._held + _shown(c, self._scan))
        self._held = ""

    def _value_ends(self) -> None:
        self._in_value = self._streams = False
        if self._kept is None:
            return
        text, self._kept = "".join(self._kept), None
        if self._key == "name":
            if self.name is not None:
                raise NotJson
            self.name = _name(_string(text))
        elif self._key == "id":
            self.own_id = _string(text) if text.startswith('"') else None
        elif text != "null":
            # Some models put the object into a string.
            inner = _string(text)
            if not isinstance(_loads(inner), dict):
                raise NotJson
            self._arguments.append(inner)
        else:
            self._has_arguments = False

    def _end(self) -> None:
        if self.name is None:
            raise NotJson
        if not self._has_arguments:
            self._has_arguments = True
            self._arguments.append("{}")


class ArgumentsReader:
    """Reads the object of arguments alone, where the format has the name elsewhere."""

    def __init__(self, name: str, own_id: str | None) -> None:
        """Raises NotJson for what can't be a name."""
        self.name: str | None = _name(name)
        self.own_id = own_id
        self._scan = JsonScanner()
        self._raw: list[str] = []
        self._arguments: list[str] = []
        self._held = ""

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def fed(self) -> int:
        return len(self._raw)

    @property
    def done(self) -> bool:
        return self._scan.done

    def feed(self, text: str) -> int:
        for at, c in enumerate(text):
            self._raw.append(c)
            self._scan.push(c)
            if self._scan.in_scalar:
                self._held += c
            else:
                self._arguments.append(self._held + _shown(c, self._scan))
                self._held = ""
            if self._scan.done:
                return at + 1
        return len(text)

    def take_arguments(self) -> str:
        text = "".join(self._arguments)
        self._arguments.clear()
        return text


def _shown(c: str, scan: JsonScanner) -> str:
    # A line break inside a string must be written otherwise in JSON.
    return json.dumps(c)[1:-1] if c < " " and scan.in_string else c


def parse_object(text: str) -> dict[str, Any] | None:
    """The object that ``text`` says; None if it is anything else."""
    try:
        value = _loads(text)
    except NotJson:
        return None
    return value if isinstance(value, dict) else None


def _name(name: str) -> str:
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise NotJson
    return name


def _string(text: str) -> str:
    value = _loads(text)
    if not isinstance(value, str):
        raise NotJson
    return value


def _loads(text: str) -> Any:
    try:
        value = json.loads(text, strict=False)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # a lone surrogate can't be sent
    except (ValueError, RecursionError):
        raise NotJson from None
    return value


def object_end(text: str, begin: int) -> int | None:
    """Where the object ends that begins at ``begin``; None if there is none (-1 is no place, too)."""
    scan = JsonScanner()
    if begin < 0 or not text.startswith("{", begin):
        return None
    for at in range(begin, len(text)):
        try:
            scan.push(text[at])
        except NotJson:
            return None
        if scan.done:
            return at + 1
    return None
