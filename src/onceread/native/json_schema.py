"""A JSON schema before llguidance has it: refused where it can't be enforced in bounded time, mended where it leaks.

llguidance refuses most of what it can't enforce by itself. Here is what it would let through, or never end on:
each rule says why it is there.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from onceread.native.errors import GrammarInvalid
from onceread.native.patterns import check_length, translated

MAX_BYTES = 64 * 1024
_MAX_SCHEMAS = 2000  # the time that optional properties take grows with the square of their number
_MAX_OPTIONAL = 400  # properties of one object: beyond 500 llguidance gives up at its first
_MAX_STEPS = 10 * _MAX_SCHEMAS
_MAX_PATTERN_PROPERTIES = 64  # each is held against each
_MAX_MEETING = 10  # patterns that one string may have to match together: the time grows exponentially
_MAX_MULTIPLE = 10_000  # an automaton of so many states
_MAX_INTEGER = 2**63 - 1
_PASSES = 50
_NUDGE = 1e-6

_ONE = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then",
    "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")
_MAPS = (
    "properties",
    "patternProperties",
    "dependentSchemas",
)  # definitions count where they are referred to
_SAYING = frozenset(
    {"$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description",
     "discriminator", "examples", "nullable", "readOnly", "title", "writeOnly"}
)  # fmt: skip

_OPEN = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "if", "dependentSchemas"}
)

_DAYS = (
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])"
)
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_DATE = f"(?:{_YEAR}-(?:{_DAYS})|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_OURS = {
    # llguidance's own let through the 29th of February of any year, the 60th second of any minute, and names
    # of any length before the @.
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": rf"^[a-zA-Z0-9_%+-]{{1,30}}(?:\.[a-zA-Z0-9_%+-]{{1,30}})?@(?:{_LABEL}\.){{1,4}}[a-zA-Z]{{2,24}}$",
}
_DEFINED = frozenset(
    {"duration", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference",
     "json-pointer", "regex", "relative-json-pointer", "uri", "uri-reference", "uri-template", "uuid"}
)  # fmt: skip

Schema = dict[str, Any]


def prepared(text: str) -> Schema:
    """The schema for llguidance. Raises GrammarInvalid."""
    if len(text.encode("utf-8", errors="replace")) > MAX_BYTES:
        raise GrammarInvalid(f"the JSON schema is longer than {MAX_BYTES} bytes")
    try:
        schema = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise GrammarInvalid("the JSON schema is not JSON, or nested too deeply") from None
    if not isinstance(schema, dict):
        raise GrammarInvalid("the JSON schema must be an object")
    schema.pop("x-guidance", None)  # llguidance's own switches; to everyone else it means nothing
    _Preparation(schema).run()
    return schema


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -_MAX_INTEGER <= int(digits) <= _MAX_INTEGER:
        raise GrammarInvalid("the JSON schema holds an integer beyond 64 bits")  # read as a rounded float
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise GrammarInvalid("the JSON schema holds a number beyond 64 bits")
    return number


def _no_number(name: str) -> NoReturn:
    raise GrammarInvalid(f"the JSON schema holds {name}, which is not JSON")


class _Preparation:
    """One walk through a schema and all that it refers to; it changes what it visits."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._schemas: list[Schema] = []
        self._meets = False  # does any value have to satisfy two schemas at once?
        self._patterns: defaultdict[str, set[str]] = defaultdict(set)  # by the property that they are about
        self._multiples: set[int] = set()
        self._pattern_properties = 0
        self._fractions: list[float] = []

    def run(self) -> None:
        patterns: dict[int, str | None] = {}  # of each schema that was visited
        steps: set[tuple[int, str]] = set()
        ahead: list[tuple[Any, str]] = [(self._root, "")]
        while ahead:
            schema, name = ahead.pop()
            if not isinstance(schema, dict) or (id(schema), name) in steps:
                continue
            steps.add((id(schema), name))
            if id(schema) not in patterns:
                self._schemas.append(schema)
                self._visit(schema)
                pattern = schema.get("pattern")
                patterns[id(schema)] = pattern if isinstance(pattern, str) else None
            if (pattern := patterns[id(schema)]) is not None:
                self._patterns[name].add(pattern)
            if len(self._schemas) > _MAX_SCHEMAS or len(steps) > _MAX_STEPS:
                raise GrammarInvalid(f"the JSON schema has more than {_MAX_SCHEMAS} parts")
            ahead.extend(self._below(schema, name))
        self._check_what_meets()
        self._mend_exclusive_bounds()
        self._check_it_ends()
        self._close_objects()

    def _below(self, schema: Schema, name: str) -> Iterator[tuple[Any, str]]:
        for key in _ONE:
            yield schema.get(key), "*" if key in ("additionalProperties", "items") else name
        for key in _LISTS:
            if isinstance(parts := schema.get(key), list):
                yield from ((part, "*" if key in ("items", "prefixItems") else name) for part in parts)
        for key in _MAPS:
            if isinstance(parts := schema.get(key), dict):
                yield from ((part, inner if key == "properties" else "*") for inner, part in parts.items())
        if "$ref" in schema:
            yield self._target(schema["$ref"]), name

    def _target(self, ref: object) -> Any:
        """What a reference points to."""
        shown = ref[:80] if isinstance(ref, str) else type(ref).__name__
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise GrammarInvalid(
                f"the JSON schema refers to {shown!r}; only a part of itself, '#/...', can be referred to"
            )
        at: Any = self._root
        for step in ref.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and step in at:
                at = at[step]
            elif isinstance(at, list) and step.isdecimal() and int(step[:9]) < len(at):
                at = at[int(step[:9])]
            else:
                raise GrammarInvalid(f"the JSON schema refers to {shown!r}, which it does not have")
        return at

    def _visit(self, schema: Schema) -> None:
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise GrammarInvalid("the JSON schema has an $id inside, which is not supported")
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]  # says nothing, and is refused all the same
        if _are_other_strings(schema.get("oneOf")) and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")  # the same then, and known to llguidance
        self._visit_format(schema)
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = _checked(schema["pattern"])
        if isinstance(named := schema.get("patternProperties"), dict):
            self._pattern_properties += len(named)
            if self._pattern_properties > _MAX_PATTERN_PROPERTIES:
                raise GrammarInvalid(
                    f"the JSON schema has more than {_MAX_PATTERN_PROPERTIES} patternProperties"
                )
            schema["patternProperties"] = {_checked(pattern): part for pattern, part in named.items()}
        self._visit_properties(schema)
        self._visit_numbers(schema)
        applied = [key for key in ("allOf", "anyOf", "oneOf", "$ref") if key in schema]
        several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
        self._meets |= several or (bool(applied) and any(k not in _SAYING for k in schema if k != applied[0]))

    def _visit_format(self, schema: Schema) -> None:
        name = schema.get("format")
        if not isinstance(name, str) or name in _DEFINED:
            return
        del schema["format"]  # of those that JSON Schema does not define, none says what is allowed
        if name in _OURS:
            if "pattern" in schema:
                more = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
                schema["allOf"] = [*more, {"pattern": _OURS[name]}]
            else:
                schema["pattern"] = _OURS[name]

    def _visit_properties(self, schema: Schema) -> None:
        required, properties = schema.get("required"), schema.get("properties")
        listed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        if isinstance(properties, dict) and len(properties.keys() - listed) > _MAX_OPTIONAL:
            raise GrammarInvalid(f"an object has more than {_MAX_OPTIONAL} optional properties")
        # That a name comes only once is seen to for the ones that are listed, not for others.
        least = schema.get("minProperties")
        if isinstance(least, (int, float)) and least > len(listed) + 1:
            raise GrammarInvalid(
                f"minProperties {least} can't be enforced beside {len(listed)} required properties"
            )

    def _visit_numbers(self, schema: Schema) -> None:
        for key in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(schema.get(key), bool):
                raise GrammarInvalid(f"{key} must be a number")
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(bound := schema.get(key), float) and not bound.is_integer():
                self._fractions.append(bound)
        step = schema.get("multipleOf")
        if isinstance(step, (int, float)) and step > 0:
            digits = format(step, "f") if isinstance(step, int) else repr(step).partition("e")[0]
            self._multiples.add(int(digits.replace(".", "").strip("0") or "1"))

    def _check_what_meets(self) -> None:
        multiple = math.lcm(*self._multiples) if self._meets else max(self._multiples, default=1)
        if multiple > _MAX_MULTIPLE:
            raise GrammarInvalid(
                f"multipleOf comes to {multiple}, more than the {_MAX_MULTIPLE} that can be enforced"
            )
        if self._meets:
            everywhere = self._patterns["*"]
            most = max(len(patterns | everywhere) for patterns in self._patterns.values())
            if most > _MAX_MEETING:
                raise GrammarInvalid(
                    f"one string may have to match {most} patterns, more than {_MAX_MEETING}"
                )

    def _mend_exclusive_bounds(self) -> None:
        # 0 passes {"exclusiveMinimum": 0, "maximum": 0.5}: a whole bound beside a fraction within one of it.
        for schema in self._schemas:
            for exclusive, inclusive, up in (
                ("exclusiveMinimum", "minimum", 1),
                ("exclusiveMaximum", "maximum", -1),
            ):
                bound = schema.get(exclusive)
                if not isinstance(bound, (int, float)) or bound != int(bound):
                    continue
                gaps = [gap for fraction in self._fractions if 0 < (gap := (fraction - bound) * up) < 1]
                if not gaps:
                    continue
                nudged = bound + up * min(_NUDGE, min(gaps) / 2)
                del schema[exclusive]
                other = schema.get(inclusive)
                if isinstance(other, (int, float)):
                    nudged = max(nudged, other) if up > 0 else min(nudged, other)
                schema[inclusive] = nudged

    def _close_objects(self) -> None:
        """Allow objects only the properties that they list, where the schema leaves it open.

        Who lists properties wants these, and the reply's schema or the function's signature often has no others;
        a small model, where it may, goes on to words of the schema itself. Not where several schemas apply to one
        value: there, each would forbid what the others list.
        """
        if self._meets or any("oneOf" in schema for schema in self._schemas):
            return
        for schema in self._schemas:
            properties, required = schema.get("properties"), schema.get("required", [])
            if not isinstance(properties, dict) or not isinstance(required, list):
                continue
            least = schema.get("minProperties", 0)
            enough = isinstance(least, (int, float)) and least <= len(properties)
            if enough and all(name in properties for name in required) and not _OPEN & schema.keys():
                schema["additionalProperties"] = False

    def _check_it_ends(self) -> None:
        """Refuse what only an endless text satisfies."""
        ending: set[int] = set()
        open_ = self._schemas[::-1]  # what is below comes first
        for _ in range(_PASSES):
            ended = [schema for schema in open_ if self._ends(schema, ending)]
            ending.update(id(schema) for schema in ended)
            if id(self._root) in ending:
                return
            if not ended:
                raise GrammarInvalid("the JSON schema refers to itself without an end")
            open_ = [schema for schema in open_ if id(schema) not in ending]

    def _ends(self, schema: Schema, ending: set[int]) -> bool:
        def ends(part: Any) -> bool:
            return not isinstance(part, dict) or id(part) in ending

        if "$ref" in schema and not ends(self._target(schema["$ref"])):
            return False
        if isinstance(parts := schema.get("allOf"), list) and not all(map(ends, parts)):
            return False
        for key in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(key), list) and not any(map(ends, parts)):
                return False
        match schema.get("type"):
            case "object":
                properties = schema.get("properties")
                required = schema.get("required")
                if not isinstance(properties, dict) or not isinstance(required, list):
                    return True
                return all(ends(properties.get(name)) for name in required if isinstance(name, str))
            case "array" if isinstance(least := schema.get("minItems"), (int, float)) and least > 0:
                first = schema.get("prefixItems")
                first = first[: int(least)] if isinstance(first, list) else []
                return all(map(ends, first)) and (least <= len(first) or ends(schema.get("items")))
            case _:
                return True


def _checked(pattern: str) -> str:
    check_length(pattern)
    return translated(pattern)


def _are_other_strings(parts: object) -> bool:
    """Is this a list of constant strings, each another?"""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return False
    constants = [part.get("const") for part in parts]
    return all(isinstance(constant, str) for constant in constants) and len(set(constants)) == len(constants)
