"""The GBNF rules of a JSON schema, as far as grammars can say it: types, fields, enums, arrays, unions, references.

Written compactly, as Python's ``json.dumps`` does: freedom in white space is where small models get lost. What is not
understood (patterns, formats, ranges of numbers) is looser than the schema, never stricter than JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 20
_MAX_REPEAT = 1000

# Every grammar needs these.
BASE = r"""
value ::= object | array | string | number | boolean | null
object ::= "{" (string ": " value (", " string ": " value)*)? "}"
array ::= "[" (value (", " value)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
""".strip()

_TYPES = ("string", "integer", "number", "boolean", "null")


def literal(text: str) -> str:
    """``text`` as a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


class SchemaRules:
    """Collects the rules of some schemas."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._root: Mapping[str, Any] = {}
        self._references: dict[str, str] = {}

    def add(self, schema: Mapping[str, Any]) -> str:
        """An expression for what ``schema`` allows; the rules that it needs are in :attr:`rules`."""
        self._root, self._references = schema, {}
        return self._value(schema, 0)

    def _value(self, schema: object, depth: int) -> str:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return "value"
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, depth)
        if "const" in schema:
            return _constant(schema["const"])
        if isinstance(options := schema.get("enum"), list) and options:
            return f"({' | '.join([_constant(option) for option in options])})"
        for union in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(union), list) and options:
                return f"({' | '.join([self._value(option, depth + 1) for option in options])})"
        if isinstance(parts := schema.get("allOf"), list) and len(parts) == 1:
            return self._value(parts[0], depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            return f"({' | '.join([self._value({**schema, 'type': one}, depth + 1) for one in kind])})"
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string" and ("minLength" in schema or "maxLength" in schema):
            return f'"\\"" char{_times(schema.get("minLength"), schema.get("maxLength"))} "\\""'
        return kind if kind in _TYPES else "value"

    def _reference(self, reference: str, depth: int) -> str:
        if reference not in self._references:
            target: Any = self._root
            for step in reference.removeprefix("#").strip("/").split("/"):
                if step:
                    target = target.get(step) if isinstance(target, dict) else None
            if not reference.startswith("#") or target is None:
                return "value"
            name = self._references[reference] = f"ref-{len(self.rules)}"
            place = len(self.rules)
            self.rules.append("")  # the name is taken before what it refers to refers to it
            self.rules[place] = f"{name} ::= {self._value(target, depth + 1)}"
        return self._references[reference]

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return '"{}"' if schema.get("additionalProperties") is False else "object"
        wanted = schema.get("required")
        required = set(wanted) if isinstance(wanted, list) else set()
        fields = []
        for key, value in properties.items():
            field = f"{literal(json.dumps(key, ensure_ascii=False) + ': ')} {self._value(value, depth + 1)}"
            fields.append((field, key in required))
        # The first field stands without a comma: each that can be the first is an alternative.
        firsts = []
        tail = self._tails(fields)
        for i, (field, needed) in enumerate(fields):
            firsts.append(f"{field} {tail[i + 1]}".rstrip())
            if needed:
                break
        else:
            firsts.append("")
        name = f"object-{len(self.rules)}"
        self.rules.append(
            f'{name} ::= "{{" ({" | ".join(firsts)}) "}}"' if firsts[-1] else _optional(name, firsts)
        )
        return name

    def _tails(self, fields: list[tuple[str, bool]]) -> list[str]:
        """What may follow once a field is there: a rule for each place among the fields."""
        tails = [""]
        for field, needed in reversed(fields[1:]):
            one = f'", " {field}' if needed else f'(", " {field})?'
            name = f"more-{len(self.rules)}"
            self.rules.append(f"{name} ::= {one} {tails[0]}".rstrip())
            tails.insert(0, name)
        return ["", *tails]

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        item = self._value(schema.get("items", True), depth + 1)
        least, most = schema.get("minItems"), schema.get("maxItems")
        least = least if isinstance(least, int) else 0
        if isinstance(most, int) and most < 1:
            return '"[]"'
        more = _times(max(0, least - 1), most - 1 if isinstance(most, int) else None)
        inner = f'{item} (", " {item}){more}'
        return f'"[" {inner} "]"' if least > 0 else f'"[" ({inner})? "]"'


def _optional(name: str, firsts: list[str]) -> str:
    return f'{name} ::= "{{" ({" | ".join(firsts[:-1])})? "}}"'


def _constant(value: object) -> str:
    return literal(json.dumps(value, ensure_ascii=False))


def _times(least: object, most: object) -> str:
    low = least if isinstance(least, int) and 0 <= least <= _MAX_REPEAT else 0
    if isinstance(most, int) and low <= most <= _MAX_REPEAT:
        return f"{{{low},{most}}}"
    return f"{{{low},}}" if low else "*"
