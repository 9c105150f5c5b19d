"""JSON character by character: is what came so far the beginning of one value, and where does it end?"""

from __future__ import annotations

import re

MAX_DEPTH = 100
"""How deep a value may be nested: far below what Python's own parser can take."""

_SPACE = " \t\n\r"
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SCALAR_BEGINS = "-0123456789tfn"
_MAX_SCALAR = 400  # digits of a number; beyond 4,300 Python refuses to read it
_ESCAPES = '"\\/bfnrtu'
_HEX = "0123456789abcdefABCDEF"

_VALUE, _FIRST, _AFTER, _KEY, _FIRST_KEY, _COLON, _STRING, _ESCAPE, _UNICODE, _NUMBER, _END = range(11)


class NotJson(Exception):
    """This character can't come here."""


class JsonScanner:
    """Accepts one object, array or string. Line breaks and tabs inside strings pass, as models write them."""

    __slots__ = ("_expects", "_hex", "_in_key", "_open", "_scalar")

    def __init__(self) -> None:
        self._expects = _VALUE
        self._open: list[str] = []
        self._in_key = False
        self._scalar = ""
        self._hex = 0

    @property
    def depth(self) -> int:
        """How many objects and arrays are open."""
        return len(self._open)

    @property
    def done(self) -> bool:
        """Is the value complete?"""
        return self._expects == _END

    @property
    def in_string(self) -> bool:
        return self._expects in (_STRING, _ESCAPE, _UNICODE)

    @property
    def in_key(self) -> bool:
        """Is the string that is open, or just ended, the key of an object?"""
        return self._in_key

    @property
    def in_scalar(self) -> bool:
        """Is a number, true, false or null open? Whether it is one shows where it ends."""
        return self._expects == _NUMBER

    @property
    def expects_value(self) -> bool:
        return self._expects in (_VALUE, _FIRST)

    def push(self, c: str) -> None:
        """One more character. Raises NotJson."""
        expects = self._expects
        if expects == _STRING:
            if c == '"':
                self._expects = _COLON if self._in_key else self._after()
            elif c == "\\":
                self._expects = _ESCAPE
        elif expects == _ESCAPE:
            _need(c in _ESCAPES)
            self._expects, self._hex = (_UNICODE, 4) if c == "u" else (_STRING, 0)
        elif expects == _UNICODE:
            _need(c in _HEX)
            self._hex -= 1
            if not self._hex:
                self._expects = _STRING
        elif expects == _NUMBER:
            if c.isalnum() or c in "+-.":
                self._scalar += c
                _need(len(self._scalar) <= _MAX_SCALAR)
            else:
                _need(_SCALAR.fullmatch(self._scalar) is not None)
                self._expects = self._after()
                self.push(c)
        elif c not in _SPACE:
            self._structure(c)

    def _structure(self, c: str) -> None:
        expects = self._expects
        if expects == _AFTER and c == ",":
            self._expects = _KEY if self._open[-1] == "{" else _VALUE
        elif expects == _AFTER or (expects, c) in ((_FIRST, "]"), (_FIRST_KEY, "}")):
            self._close(c)
        elif expects in (_VALUE, _FIRST):
            self._begin(c)
        elif expects == _COLON:
            _need(c == ":")
            self._expects, self._in_key = _VALUE, False
        else:
            _need(expects != _END and c == '"')  # a key
            self._expects, self._in_key = _STRING, True

    def _begin(self, c: str) -> None:
        if c == '"':
            self._expects, self._in_key = _STRING, False
        elif c in "{[":
            _need(len(self._open) < MAX_DEPTH)
            self._open.append(c)
            self._expects = _FIRST_KEY if c == "{" else _FIRST
        else:
            _need(bool(self._open) and c in _SCALAR_BEGINS)  # alone it would have no end
            self._scalar = c
            self._expects = _NUMBER

    def _close(self, c: str) -> None:
        _need(bool(self._open) and c == {"{": "}", "[": "]"}[self._open[-1]])
        self._open.pop()
        self._expects = self._after()

    def _after(self) -> int:
        return _AFTER if self._open else _END


def _need(true: bool) -> None:
    if not true:
        raise NotJson
