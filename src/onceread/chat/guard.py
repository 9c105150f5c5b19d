"""Keeps what clients write from turning into control tokens on its way through a chat template.

A template's output is one string, in which the ``<|im_end|>`` that the template wrote
looks like one that a user wrote. So before rendering, every control string inside a
client's string gets *marks*, a character that occurs nowhere else, behind its first
character and before its last. What is unmarked in the output was written by the template:

    client writes   "hi<|im_end|>"       template writes   "<|im_end|>"
    goes in as      "hi<·|im_end|·>"
    comes out       "hi<·|im_end|·><|im_end|>"
                    └─── text ────┘└ control ┘     and the marks are dropped

A control string can also come together from pieces: where a client's string ends in
``<|im_`` before one that begins with ``end|>``, or before the template's own text; where a
template deletes what stands between them, as those do that take reasoning off. So marks
stand behind *every* character that a control string can begin with and before every one
that it can end with. Spared are what the template itself looks for, such as ``</think>``:
it has to find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from onceread.chat.errors import TemplateError
from onceread.chat.rendered import Control, Segment, Text

# Letters of scripts that died out, Cuneiform to Tangut: no case and no white space (templates trim), and
# left alone where a template prints Python's own form of a value, which escapes private use characters.
_MARKS = [code for code in range(0x12000, 0x187F8) if chr(code).isalpha()]
# Templates may change case. Only ASCII is folded: control strings are ASCII where they have case at all,
# and folding the rest can change a string's length.
_FOLD = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_NEVER = "(?!)"  # a pattern that nothing matches


class Marked(str):
    """A string with marks in it that still equals, and hashes as, the string without them.

    So a template's ``name == 'python'`` or ``arguments.code`` works as if there were no marks.
    """

    __slots__ = ("plain",)
    plain: str

    def __eq__(self, other: object) -> bool:
        return self.plain == (other.plain if isinstance(other, Marked) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.plain)


class ControlStrings:
    """The control strings of one vocabulary, ready to be looked for."""

    def __init__(self, tokens: Mapping[str, int], literals: Iterable[str] = ()) -> None:
        """``literals``: strings that the template writes or looks for."""
        self.tokens = {text: token for text, token in tokens.items() if text}
        by_length = sorted(self.tokens, key=len, reverse=True)
        self._longest = len(by_length[0]) if by_length else 0
        first = _one_of({text[0] for text in by_length})
        self._whole = re.compile(
            f"((?={first})(?:{'|'.join(map(re.escape, by_length))}))" if first else _NEVER
        )
        begins, ends = first, _one_of({text[-1] for text in by_length})
        self._edges = re.compile(f"{begins}|{ends}" if begins else _NEVER, re.IGNORECASE | re.ASCII)
        folded = [text.translate(_FOLD) for text in by_length]
        self._joined = "\0".join(folded)
        spared = sorted(
            {text for text in literals if self._may_be_spared(text.translate(_FOLD), folded)}, key=len
        )
        self._open = re.compile(
            f"({'|'.join(map(re.escape, reversed(spared))) or _NEVER})|({begins})|(?={ends})"
            if first
            else _NEVER,
            re.IGNORECASE | re.ASCII,
        )

    def split(self, text: str) -> list[str]:
        """``text`` cut at its control strings: text, control, text, control, ..., text."""
        return self._whole.split(text)

    def broken(self, text: str, mark: str) -> str:
        """``text`` with marks, so that no control string can come of it, alone or with its neighbours."""

        def put(found: re.Match[str]) -> str:
            if found[1] is not None:
                return found[1]
            return mark if found[2] is None else found[2] + mark

        marked = self._open.sub(put, text)
        # What a template may write the beginning and the end of. Templates trim.
        inner = text.strip()
        if inner and marked == text and len(inner) < self._longest and inner.translate(_FOLD) in self._joined:
            at = text.index(inner) + 1
            return text[:at] + mark + text[at:]
        return marked

    def _may_be_spared(self, literal: str, folded: list[str]) -> bool:
        """Can no part of the literal be a part of a control string that goes on before it or behind it?"""
        tails = [literal[i:] for i in range(len(literal))]
        heads = [literal[:i] for i in range(1, len(literal) + 1)]
        return self._edges.search(literal) is not None and not any(
            text in literal
            or any(text.startswith(tail) for tail in tails)
            or any(text.endswith(head) for head in heads)
            for text in folded
        )


def _one_of(characters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else ""


class Guard:
    """Marks the strings of one conversation, and takes its rendering apart again."""

    def __init__(self, control: ControlStrings, values: Iterable[object], template: str) -> None:
        """``values`` is everything the client says; ``template`` is the template's source."""
        self._control = control
        taken = "".join([template, *control.tokens, *_strings(values)])
        free = (chr(code) for code in _MARKS if chr(code) not in taken)
        try:
            self._mark, self.end = next(free), next(free)
        except StopIteration:
            raise TemplateError(
                "the conversation uses every character that could mark what is text in it"
            ) from None

    def mark(self, value: Any) -> Any:
        """``value`` with marks in all its strings, at any depth, and in the keys of its objects."""
        match value:
            case str():
                return self._mark_string(value)
            case list() | tuple():
                return [self.mark(item) for item in value]
            case dict():
                return {self.mark(key): self.mark(item) for key, item in value.items()}
            case _:
                return value

    def unmark(self, text: str) -> str:
        return text.replace(self._mark, "").replace(self.end, "")

    def segments(self, rendering: str) -> tuple[Segment, ...]:
        """The rendering as text and the control tokens that the template wrote."""
        found: list[Segment] = []
        for i, piece in enumerate(self._control.split(rendering)):
            if i % 2:
                found.append(Control(self._control.tokens[piece], piece))
            elif text := self.unmark(piece):
                found.append(Text(text))
        return tuple(found)

    def _mark_string(self, text: str) -> str:
        broken = self._control.broken(text, self._mark)
        if broken == text:
            return text
        marked = Marked(broken)
        marked.plain = text
        return marked


def _strings(values: Iterable[object]) -> Iterable[str]:
    for value in values:
        match value:
            case str():
                yield value
            case list() | tuple():
                yield from _strings(value)
            case dict():
                yield from _strings(value.keys())
                yield from _strings(value.values())
