"""What becomes of a JSON schema and its patterns before they are enforced."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

import pytest

from onceread.native.errors import GrammarInvalid
from onceread.native.json_schema import prepared
from onceread.native.patterns import check_length, translated


def ready(schema: Any) -> dict[str, Any]:
    return prepared(json.dumps(schema))


def chain(n: int, end: dict[str, Any]) -> dict[str, Any]:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": end}}


REFUSED: dict[str, tuple[Any, str]] = {
    "a list": ([], "must be an object"),
    "a remote reference": ({"$ref": "https://example.com/a.json"}, "refers to 'https"),
    "a reference to a file": ({"items": {"$ref": "file:///etc/passwd"}}, "refers to 'file"),
    "a reference to nothing": ({"$ref": "#/nothing"}, "does not have"),
    "a reference past a list": ({"anyOf": [{"$ref": "#/anyOf/1"}]}, "does not have"),
    "an endless number": ('{"exclusiveMinimum": 1e999}', "beyond 64 bits"),
    "a reference to an anchor": ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "refers to '#a'"),
    "another base inside": ({"properties": {"a": {"$id": "http://a/b"}}}, r"\$id"),
    "itself": ({"$ref": "#"}, "without an end"),
    "a long way to itself": (chain(1500, {"$ref": "#"}), "without an end"),
    "a property that needs itself": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "without an end",
    ),
    "an item that needs itself": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without an end"),
    "alternatives that need themselves": (
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
        "without an end",
    ),
    "too many parts": ({"anyOf": [{} for i in range(3000)]}, "more than 2000 parts"),
    "too many optional properties": ({"properties": {str(i): {} for i in range(500)}}, "400 optional"),
    "too many bytes": ({"enum": ["x" * 70_000]}, "longer than 65536"),
    "too many named patterns": ({"patternProperties": {f"^a{i}": {} for i in range(70)}}, "more than 64"),
    "too many patterns for a string": (
        {"allOf": [{"pattern": f"a{i}b"} for i in range(11)]},
        "match 11 patterns",
    ),
    "too many patterns by references": (
        {
            "properties": {
                **{f"p{i}": {"$ref": f"#/$defs/{i}"} for i in range(11)},
                "all": {"allOf": [{"$ref": f"#/$defs/{i}"} for i in range(11)]},
            },
            "$defs": {str(i): {"pattern": f"a{i}b"} for i in range(11)},
        },
        "match 11 patterns",
    ),
    "too large a multiple": ({"multipleOf": 99999989}, "multipleOf comes to 99999989"),
    "too large a common multiple": ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "comes to 988027"),
    "names that might be twice": ({"minProperties": 2, "required": []}, "minProperties 2"),
    "an integer that is read as a float": ({"const": 2**64}, "beyond 64 bits"),
    "an endless integer": ({"const": 10**4000}, "beyond 64 bits"),
    "bounds of an old draft": ({"minimum": 1, "exclusiveMinimum": True}, "must be a number"),
    "a pattern for novels": ({"pattern": "^(a{1000}){1000}$"}, "more than 65536 characters"),
    "not a number": ({"const": float("nan")}, "not JSON"),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("schema", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(schema: Any, says: str) -> None:
    with pytest.raises(GrammarInvalid, match=says):
        prepared(schema if isinstance(schema, str) else json.dumps(schema))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1} 2'])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(GrammarInvalid):
        prepared(text)


TREE = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#"}},
        "next": {"anyOf": [{"$ref": "#"}, {}]},
    },
    "required": ["children", "next"],
    "additionalProperties": False,
}
TAKEN: dict[str, Any] = {
    "a tree": TREE,
    "a long chain": chain(1500, {"type": "null"}),
    "many patterns for many strings": {
        "allOf": [{"properties": {f"p{i}": {"pattern": f"a{i}b"}}} for i in range(30)]
    },
    "odd names in references": {
        "$defs": {"a/b~ é": {"type": "null"}},
        "prefixItems": [{"$ref": "#/$defs/a~1b~0%20%C3%A9"}, {"$ref": "#/prefixItems/2"}, {"type": "null"}],
    },
    "a property that is named like a keyword": {
        "properties": {"$ref": {"type": "string"}, "format": {"pattern": "a"}},
        "additionalProperties": True,
    },
    "values that look like schemas": {
        "enum": [{"$ref": "http://a", "minProperties": 9}],
        "default": {"$id": "x"},
    },
    "an odd type": {
        "properties": 5,
        "required": "a",
        "anyOf": {},
        "pattern": 1,
        "format": [],
        "multipleOf": "x",
    },
}


@pytest.mark.parametrize("schema", TAKEN.values(), ids=TAKEN)
def test_taken_as_it_is(schema: Any) -> None:
    assert ready(schema) == schema


LISTED: dict[str, Any] = {"properties": {"a": {}}}
LEFT_OPEN: dict[str, Any] = {
    "any object": {"type": "object"},
    "an object that says so": {**LISTED, "additionalProperties": True},
    "an object whose others have a schema": {**LISTED, "additionalProperties": {"type": "null"}},
    "patterns of names": {**LISTED, "patternProperties": {"b": {}}},
    "a name that must be there and is not listed": {**LISTED, "required": ["b"]},
    "more properties than are listed": {**LISTED, "minProperties": 2, "required": ["a"]},
    "schemas that meet": {"allOf": [LISTED, {"properties": {"b": {}}}]},
    "a schema beside a reference": {"$defs": {"b": {"properties": {"b": {}}}}, "$ref": "#/$defs/b", **LISTED},
    "a schema beside alternatives": {"anyOf": [{"properties": {"b": {}}}, {}], **LISTED},
    "alternatives that must exclude each other": {"oneOf": [LISTED, {"type": "string"}]},
}


@pytest.mark.parametrize("schema", LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_objects_that_stay_open(schema: Any) -> None:
    assert ready(schema) == schema


def test_objects_have_the_properties_that_are_listed() -> None:
    closed = {**LISTED, "additionalProperties": False}
    assert ready(LISTED) == closed
    assert ready({"type": "object", "properties": {}})["additionalProperties"] is False
    assert ready({"items": LISTED}) == {"items": closed}
    assert ready({"anyOf": [LISTED, {"type": "null"}]}) == {"anyOf": [closed, {"type": "null"}]}
    referring = {"$defs": {"a": LISTED}, "title": "A", "$ref": "#/$defs/a"}
    assert ready(referring) == {**referring, "$defs": {"a": closed}}
    nested = ready({"properties": {"a": LISTED}, "required": ["a"]})
    assert nested == {"properties": {"a": closed}, "required": ["a"], "additionalProperties": False}


def test_mended() -> None:
    assert ready({"x-guidance": {"lenient": True}, "not": {}}) == {"not": {}}
    assert ready({"uniqueItems": False}) == {}
    assert ready({"format": "password"}) == ready({"format": "int32"}) == {}
    assert ready({"format": "uri-template"}) == {"format": "uri-template"}
    assert ready({"oneOf": [{"const": "a"}, {"const": "b", "title": "B"}]}).keys() == {"anyOf"}
    assert ready({"oneOf": [{"const": "a"}, {"const": "a"}]}).keys() == {"oneOf"}
    assert ready({"oneOf": [{"const": 1}, {"const": 1.0}]}).keys() == {"oneOf"}
    both = ready({"format": "date", "pattern": "^20"})
    assert both["pattern"] == "^20"
    assert both["allOf"] == [ready({"format": "date"})]


@pytest.mark.parametrize(
    ("bounds", "mended"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, {"minimum": 1e-6, "maximum": 0.5}),
        ({"exclusiveMaximum": -1, "minimum": -1.5}, {"maximum": -1.000001, "minimum": -1.5}),
        ({"exclusiveMinimum": 0, "minimum": 0.1, "maximum": 0.5}, {"minimum": 0.1, "maximum": 0.5}),
        ({"exclusiveMinimum": 0, "maximum": 1.5}, {"exclusiveMinimum": 0, "maximum": 1.5}),
        ({"exclusiveMinimum": 0.25, "maximum": 0.5}, {"exclusiveMinimum": 0.25, "maximum": 0.5}),
    ],
)
def test_a_whole_bound_beside_a_fraction(bounds: dict[str, float], mended: dict[str, float]) -> None:
    assert ready(bounds) == mended


@pytest.mark.parametrize(
    "text", ["2024-02-29", "2000-02-29", "1900-02-28", "0001-01-31", "9999-12-31", "2023-04-30"]
)
def test_dates_that_are(text: str) -> None:
    assert date.fromisoformat(text)
    assert re.search(ready({"format": "date"})["pattern"], text)


@pytest.mark.parametrize(
    "text", ["2023-02-29", "1900-02-29", "0000-01-01", "2024-02-30", "2024-04-31", "2024-1-1"]
)
def test_dates_that_are_not(text: str) -> None:
    assert not re.search(ready({"format": "date"})["pattern"], text)


PATTERNS = {
    '[^"]': r'[^\x00"]',
    "[^]": "(?s:.)",
    ".": r"[^\x00\n\r\u{2028}\u{2029}]",
    r"\s\S": r"[ \t-\r]\S",
    r"[\s.]": r"[ \t-\r.]",
    r"[[&&~a]": r"[\[\&\&\~a]",
    r"\[^a]\.": r"\[^a]\.",
    r"\P{L}\PL": r"[^\x00\p{L}][^\x00\pL]",
    r"[\x00-\x7f]": r"[\x01-\x7f]",
    r"a{2,}(?:b|c)+?$": r"a{2,}(?:b|c)+?$",
}


@pytest.mark.parametrize(("pattern", "becomes"), PATTERNS.items())
def test_patterns_in_the_engines_dialect(pattern: str, becomes: str) -> None:
    assert translated(pattern) == becomes


@pytest.mark.parametrize("pattern", ["[]", "[a--z]", r"[\P{L}]", r"\p{Cc}", r"[\x00a]", r"[\p{C}]"])
def test_patterns_that_the_engine_would_take_otherwise(pattern: str) -> None:
    with pytest.raises(GrammarInvalid):
        translated(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a{65537}",
        "(a{300}){300}",
        "(a{1000}?){1000}?",
        "(a|b{70000})c",
        "a{99999999999999999999}",
        "((" * 9 + "a{70000}",
    ],
)
def test_patterns_that_are_too_long_to_be_forced(pattern: str) -> None:
    with pytest.raises(GrammarInvalid):
        check_length(pattern)


@pytest.mark.parametrize(
    "pattern", ["a{65536}", "(a{1000}){0,1000}", "((a{1000}){1000})?", r"[a{70000}]\{70000}", "(a|b)*" * 99]
)
def test_patterns_that_are_not(pattern: str) -> None:
    check_length(pattern)
