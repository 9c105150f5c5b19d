"""Replies that must be tool calls: a grammar of a format's calls, in llguidance's Lark.

    shape     [TOOL_CALLS][{"name": "f", "arguments": {…}}]

Marks that are tokens of their own in the vocabulary stand in the grammar as tokens; everything else as text.
Arguments follow the tools' schemas, written as ``json.dumps`` writes: freedom in white space is where small models
get lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onceread.chat.errors import ChatError
from onceread.chat.toolcalls import Shape
from onceread.native.errors import GrammarInvalid
from onceread.native.grammar import schema_in_lark

_MAX_MORE = 15  # calls beside the first
_ANY_OBJECT = {"type": "object"}


class CannotForce(ChatError):
    """A tool's schema is strict and can't be enforced."""


def force_call(
    shape: Shape,
    tools: Sequence[Mapping[str, Any]],
    *,
    many: bool,
    marks: Mapping[str, int],
    otherwise: str | None = None,
) -> str:
    """The grammar of replies that call some of ``tools``, at least one; or, with ``otherwise``, are JSON of it.

    ``tools`` are functions: ``name``, ``parameters``, ``strict``. ``marks`` are the strings that the vocabulary has
    tokens of their own for. A schema that can't be enforced is left out, so that its arguments can be any object;
    if the tool is strict, CannotForce is raised.
    """
    calls, rules = [], []
    for i, tool in enumerate(tools):
        calls.append(_sequence(marks, tool["name"] + shape.between, f"args{i}", shape.after))
        rules.append(f"args{i}: {_arguments(tool)}")
    root = _sequence(marks, shape.begin + shape.before, "call")
    if many:
        root += f" ({_sequence(marks, shape.separator + shape.before, 'call')}){{0,{_MAX_MORE}}}"
    root += f" {_sequence(marks, shape.end)}" if shape.end else ""
    if otherwise is not None:
        root += " | otherwise"
        rules.append(f"otherwise: {schema_in_lark(otherwise)}")
    return "\n".join([f"start: {root}", f"call: {' | '.join(calls)}", *rules, ""])


def _arguments(function: Mapping[str, Any]) -> str:
    schema = {**_ANY_OBJECT, **(function.get("parameters") or {})}
    try:
        return schema_in_lark(json.dumps(schema, ensure_ascii=False, allow_nan=False), compact=True)
    except (GrammarInvalid, ValueError, RecursionError) as error:
        if function.get("strict"):
            raise CannotForce(f"the tool {function['name']} is strict: {error}") from error
        return schema_in_lark(json.dumps(_ANY_OBJECT), compact=True)


def _sequence(marks: Mapping[str, int], text: str, rule: str = "", after: str = "") -> str:
    """``text``, ``rule`` and ``after`` one after another, as Lark."""
    parts = [*_written(marks, text), *([rule] if rule else []), *_written(marks, after)]
    return " ".join(parts)


def _written(marks: Mapping[str, int], text: str) -> list[str]:
    there = sorted([mark for mark in marks if mark and mark in text], key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, there))})", text) if there else [text]
    return [
        f"<[{marks[piece]}]>" if piece in there else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
        if piece
    ]
