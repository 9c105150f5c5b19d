"""Puts a model's own words back where a template rendered its tool calls in another way.

The name of each call goes into the template with a mark before it. Where the mark comes out, the format knows
the call's borders, and what stands between them is replaced:

    rendered   …<tool_call>⏎{"name": "·f", "arguments": {"x": 1, "y": 2}}⏎</tool_call>…
    sampled    …<tool_call>{"name":"f","arguments":{"y":2,"x":1}}</tool_call>…
                           └──────────────── inside ────────────┘
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from onceread.chat.guard import Marked
from onceread.chat.rendered import Control, Rendered, Segment, Text
from onceread.chat.toolcalls import Place, ToolFormat, Wording

# A letter, as the guard's marks are, but from the other end of the same scripts.
_CODES = range(0x187F7, 0x18000, -1)
_CONTENT_END = 24


@dataclass(frozen=True, slots=True)
class Worded:
    """A call that is to be worded as the model did."""

    wording: Wording
    content: str  # of its message
    first: bool  # in its message


def free_mark(*texts: str) -> str | None:
    """A character that occurs in none of the texts."""
    return next((chr(code) for code in _CODES if not any(chr(code) in text for text in texts)), None)


def marked_name(name: str, mark: str) -> str:
    """``name`` with the mark before it; templates that compare it see no difference."""
    marked = Marked(mark + name)
    marked.plain = name
    return marked


def put_wordings(
    rendered: Rendered, mark: str, calls: Sequence[Worded], form: ToolFormat, ends: tuple[str, ...]
) -> Rendered:
    """``rendered`` with the calls' own wordings, and without the marks.

    The calls are in the order of their messages. ``ends``: what reasoning ends with.
    """
    flat = rendered.text
    edits: list[tuple[int, int, str]] = []
    names = [at for at, c in enumerate(flat) if c == mark]
    # A template that drops a message's calls, or prints a name twice, renders them in a way of its own.
    if len(names) == len(calls):
        for at, call in zip(names, calls, strict=True):
            place = form.locate(flat, at)
            if place is not None:
                edits.append((*place.inside, call.wording.inside))
                if _may_replace_before(flat, place, call, (*form.marks, *ends)):
                    edits.append((*place.before, call.wording.before))
    edits += [(at, at + 1, "") for at in names]
    return _edited(rendered, edits)


def _may_replace_before(flat: str, place: Place, call: Worded, ends: tuple[str, ...]) -> bool:
    """White space before the first call of a message without content is the template's header."""
    stands_behind = flat[: place.before[0]]
    content = call.content.rstrip()[-_CONTENT_END:]
    return stands_behind.endswith(ends) or bool(call.first and content and stands_behind.endswith(content))


def _edited(rendered: Rendered, edits: list[tuple[int, int, str]]) -> Rendered:
    """The edits that lie within one text each; control tokens are the template's."""
    # Of edits that overlap the first counts: a mark inside of what is replaced goes with it.
    edits = sorted(edits, key=lambda edit: (edit[0], -edit[1]))
    begins = [edit[0] for edit in edits]
    segments: list[Segment] = []
    start = 0
    for segment in rendered.segments:
        end = start + len(segment.text)
        if isinstance(segment, Control):
            segments.append(segment)
        else:
            pieces, done = [], start
            for edit in edits[bisect.bisect_left(begins, start) : bisect.bisect_right(begins, end)]:
                begin, until, new = edit
                if begin >= done and until <= end:
                    pieces += [segment.text[done - start : begin - start], new]
                    done = until
            pieces.append(segment.text[done - start :])
            if text := "".join(pieces):
                segments.append(Text(text))
        start = end
    return Rendered(tuple(segments))
