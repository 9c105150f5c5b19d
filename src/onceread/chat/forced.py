"""Replies that must be tool calls: the grammar of a format's calls, and what of it the prompt says already.

Grammars speak of text, and a mark that is a control token of the vocabulary is none. Where a reply must begin
with one, it is put at the prompt's end; where one would follow later, the reply ends before it.

    shape     [TOOL_CALLS][{"name": "f", "arguments": {…}}]
              └─ prompt ─┘└────────── grammar ────────────┘
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceread.chat.errors import ChatError
from onceread.chat.reasoning import Tags
from onceread.chat.schemagrammar import BASE, SchemaRules, literal
from onceread.chat.toolcalls import Shape

_MAX_MORE = 15  # calls beside the first
_MAX_GRAMMAR = 32 * 1024
_MAX_NESTING = 500


class CannotForce(ChatError):
    """This model's format does not let a grammar choose among several tools."""


@dataclass(frozen=True, slots=True)
class Forced:
    """How to make a reply a call."""

    prompt: str  # to be put at the prompt's end, control tokens written out; the reply goes on from there
    grammar: str  # GBNF


def force_call(
    shape: Shape,
    tools: Sequence[Mapping[str, Any]],
    *,
    many: bool,
    control: Collection[str],
    thinks: Tags | None = None,
) -> Forced:
    """Make a reply call some of ``tools``, at least one. ``thinks``: it begins inside of these tags.

    Raises CannotForce.
    """
    written = "".join([shape.begin, shape.before, shape.between, shape.after, shape.separator, shape.end])
    cut = re.compile("|".join([re.escape(mark) for mark in control if mark in written]) or "(?!)")
    names = [tool["function"]["name"] for tool in tools]
    between, after = shape.between, shape.after + ("" if many else shape.end)
    begin = shape.begin + shape.before
    if cut.search(between):
        if len(names) > 1:
            raise CannotForce(
                "this model writes a control token behind a tool's name, so a grammar can't choose among several "
                "tools; name the one to call"
            )
        begin, between, names = begin + names[0] + between, "", [""]
    marks = list(cut.finditer(begin))
    prompt, begin = (begin[: marks[-1].end()], begin[marks[-1].end() :]) if marks else ("", begin)
    if (closing := cut.search(after)) is not None:
        after = after[: closing.start()]
    many = many and not cut.search(shape.before + between + shape.after + shape.separator)
    calls = _calls(tools, names, between, after, schemas=True)
    if _size(calls) > _MAX_GRAMMAR or calls.count("(") + calls.count("::=") > _MAX_NESTING:
        calls = _calls(tools, names, between, after, schemas=False)
    root = f"{literal(begin)} call" if begin else "call"
    if many:
        again = f"{literal(shape.separator + shape.before)} call"
        root += f" ({again}){{0,{_MAX_MORE}}}"
        root += f" {literal(shape.end)}" if shape.end else ""
    if thinks is not None and not prompt:
        root = f"think {root}"
        calls += f"\n{_thinking(thinks[1])}"
    return Forced(prompt, f"root ::= {root}\n{calls}\n{BASE}\n")


def _calls(
    tools: Sequence[Mapping[str, Any]], names: Sequence[str], between: str, after: str, *, schemas: bool
) -> str:
    """The rule `call`: from a name to what stands behind the arguments."""
    made = SchemaRules()
    alternatives = []
    for tool, name in zip(tools, names, strict=True):
        schema = tool["function"].get("parameters")
        arguments = made.add({"type": "object", **schema}) if schemas and schema else "object"
        parts = [
            literal(name + between) if name + between else "",
            arguments,
            literal(after) if after else "",
        ]
        alternatives.append(" ".join([part for part in parts if part]))
    return "\n".join([f"call ::= {' | '.join(alternatives)}", *made.rules])


def _thinking(close: str) -> str:
    """Any text up to ``close``, in whose inside its first character must not come again."""
    first = _in_class(close[0])
    begun = " | ".join([literal(close[:i]) for i in range(len(close) - 1, 0, -1)])
    left = " | ".join([f"{literal(close[:i])} [^{_in_class(close[i])}{first}]" for i in range(1, len(close))])
    return f'think ::= ([^{first}] | ({begun})* ({left}))* ({begun})* {literal(close)} "\\n"{{0,2}}'


def _in_class(c: str) -> str:
    return f"\\{c}" if c in "[]\\^-" else c


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
