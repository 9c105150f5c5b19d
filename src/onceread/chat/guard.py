"""Keeps what clients write from turning into control tokens on its way through a chat template.

A template's output is one string, in which the ``<|im_end|>`` that the template wrote
looks like one that a user wrote. So before rendering, every control string inside a
client's string gets a *mark*, a character that occurs nowhere else, after its first
character. What is unmarked in the output was written by the template:

    client writes   "hi<|im_end|>"       template writes   "<|im_end|>"
    goes in as      "hi<·|im_end|>"
    comes out       "hi<·|im_end|><|im_end|>"
                    └── text ────┘└ control ┘     and the marks are dropped

A control string can also come together from pieces: a client's string that ends in
``<|im_`` before one that begins with ``end|>``, or before the template's own text. A
piece that can take part in that (a beginning at its end, an end at its start, or as a
whole an inner part) is marked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from onceread.chat.rendered import Control, Segment, Text

# Private use characters: no meaning of their own, not whitespace (templates trim), left alone by JSON.
_MARKS = [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE)]
# Templates may change case. Only ASCII is folded: control strings are ASCII where they have case at all,
# and folding the rest can change a string's length.
_FOLD = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


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

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = {text: token for text, token in tokens.items() if text}
        by_length = sorted(self.tokens, key=len, reverse=True)
        self.longest = len(by_length[0]) if by_length else 0
        first = "".join({re.escape(text[0]) for text in by_length})
        # Without control strings nothing may match: "(?!)" never does.
        found = f"(?=[{first}])(?:{'|'.join(map(re.escape, by_length))})" if by_length else "(?!)"
        self._whole = re.compile(f"({found})")
        self._starts = re.compile(f"(?={found})", re.IGNORECASE)
        begun = {re.escape(text[:2]) for text in by_length}
        self._begins = re.compile(f"(?=(?:{'|'.join(sorted(begun))}))" if begun else "(?!)", re.IGNORECASE)
        folded = [text.translate(_FOLD) for text in by_length]
        self._heads = frozenset(text[:i] for text in folded for i in range(1, len(text)))
        self._tails = frozenset(text[-i:] for text in folded for i in range(1, len(text)))
        self._joined = "\0".join(folded)

    def split(self, text: str) -> list[str]:
        """``text`` cut at its control strings: text, control, text, control, ..., text."""
        return self._whole.split(text)

    def gaps(self, text: str, *, every_beginning: bool) -> list[int]:
        """Where marks must go so that no control string can come of ``text``, alone or with its neighbours.

        ``every_beginning`` asks for marks also where a control string merely begins.
        """
        starts = self._begins if every_beginning else self._starts
        gaps = {match.start() + 1 for match in starts.finditer(text)}
        # Templates trim, so what counts as the end is also where the text without whitespace ends.
        folded = text.translate(_FOLD)
        left, right = len(folded) - len(folded.lstrip()), len(folded.rstrip())
        for end in {right, len(folded)}:
            gaps.update(
                at + 1 for at in range(max(0, end - self.longest + 1), end) if folded[at:end] in self._heads
            )
        for start in {left, 0}:
            gaps.update(
                at - 1
                for at in range(start + 1, min(len(folded), start + self.longest - 1) + 1)
                if folded[start:at] in self._tails
            )
        inner = folded[left:right]
        if inner and len(inner) < self.longest and inner in self._joined:
            gaps.add(left + 1)
        return sorted(gaps)


class Guard:
    """Marks the strings of one conversation, and takes its rendering apart again."""

    def __init__(self, control: ControlStrings, values: Iterable[object], template: str) -> None:
        """``values`` is everything the client says; ``template`` is the template's source."""
        self._control = control
        # A template that deletes parts of a text can join what is left of it to a control string:
        # then a mark at every beginning is needed. Otherwise it would only hinder templates that look for
        # other tags in the text.
        self._every_beginning = "replace" in template
        taken = "".join([template, *control.tokens, *_strings(values)])
        free = (chr(code) for code in _MARKS if chr(code) not in taken)
        try:
            self._mark, self.end = next(free), next(free)
        except StopIteration:
            raise ValueError("the conversation uses every private use character there is") from None

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
        gaps = self._control.gaps(text, every_beginning=self._every_beginning)
        if not gaps:
            return text
        pieces = [text[a:b] for a, b in zip([0, *gaps], [*gaps, len(text)], strict=True)]
        marked = Marked(self._mark.join(pieces))
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
