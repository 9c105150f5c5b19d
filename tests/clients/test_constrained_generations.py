"""Generations of the demo model under thirty JSON schemas: all that end parse and satisfy their schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from tests.server.live import Live

# The table of schemas is one schema a line.
# ruff: noqa: E501
pytestmark = [pytest.mark.model, pytest.mark.soak]

AT_FULL_SCALE = 10  # generations for each schema
MAX_TOKENS = 200
ENDED: list[bool] = []  # of all generations: did they end by themselves?


def text(most: int = 12, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **more}


def obj(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    wanted = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": wanted,
        "additionalProperties": False,
        **more,
    }


def array(items: Any, least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


INT = {"type": "integer", "minimum": 0, "maximum": 99}
NODE = obj({"value": INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
LEAF = obj({"name": text(6), "children": array({"$ref": "#/$defs/tree"}, 0, 2)})
SCHEMAS: dict[str, Any] = {
    "a person": obj({"name": text(), "age": INT}),
    "optional fields": obj({"a": INT, "b": text(), "c": {"type": "boolean"}}, ["b"]),
    "nothing required": obj({"a": INT, "b": INT}, []),
    "nested": obj({"x": obj({"y": obj({"z": obj({"deep": text(5)})})})}),
    "an enum": obj({"colour": {"enum": ["red", "green", "blue"]}}),
    "an enum of mixed types": obj({"v": {"enum": [1, "one", None, True, 1.5, [1], {"a": 1}]}}),
    "a constant": obj({"kind": {"const": "river"}, "n": INT}),
    "an array with bounds": array(INT, 2, 4),
    "an array of objects": array(obj({"id": INT, "tag": text(4)}), 1, 3),
    "an array of arrays": array(array(INT, 1, 2), 1, 2),
    "a tuple": {"type": "array", "prefixItems": [text(4), INT, {"type": "boolean"}], "items": False, "minItems": 3},
    "a reference": {"$defs": {"point": obj({"x": INT, "y": INT})}, **obj({"a": {"$ref": "#/$defs/point"}})},
    "two of one reference": {
        "$defs": {"point": obj({"x": INT})},
        **obj({"a": {"$ref": "#/$defs/point"}, "b": {"$ref": "#/$defs/point"}}),
    },
    "a linked list": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "a tree": {"$defs": {"tree": LEAF}, "$ref": "#/$defs/tree"},
    "a union": obj({"v": {"anyOf": [INT, text(5), {"type": "null"}]}}),
    "a union of objects": {"anyOf": [obj({"cat": {"const": 1}, "a": INT}), obj({"dog": text(5)})]},
    "types in a list": obj({"v": {"type": ["integer", "null"], "minimum": 0, "maximum": 9}}),
    "a pattern": obj({"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}}),
    "two patterns": obj({"a": {"type": "string", "pattern": "^(ab|cd)+$", "maxLength": 8}, "b": {"type": "string", "pattern": "^x?y$"}}),
    "keys and values of other alphabets": obj({"名前": {"enum": ["東京", "Zürich", "москва"]}, "ключ": text(6)}),
    "emoji": obj({"mood": {"enum": ["😀", "😢", "🏳️‍🌈"]}}),
    "quotes in keys": obj({'say "hi"': INT, "back\\slash": INT, "a\nb": INT}),
    "numbers with bounds": obj({"share": {"type": "number", "minimum": 0, "maximum": 1}, "t": {"type": "integer", "minimum": -5, "maximum": 5}}),
    "multiples": obj({"five": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50}}),
    "a date and a time": obj({"day": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "time"}}),
    "an address and an id": obj({"id": {"type": "string", "format": "uuid"}, "ip": {"type": "string", "format": "ipv4"}}),
    "lengths of strings": obj({"four": {"type": "string", "minLength": 4, "maxLength": 4}, "least": {"type": "string", "minLength": 2, "maxLength": 9}}),
    "a map": {"type": "object", "additionalProperties": INT, "maxProperties": 3, "minProperties": 1},
    "all of": {"allOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"]}, {"type": "object", "properties": {"b": text(4)}, "required": ["b"], "additionalProperties": True}]},
}  # fmt: skip


def valid(schema: Any, said: str) -> bool:
    """By two implementations, formats included."""
    try:
        value = json.loads(said)
    except ValueError:
        return False
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    one = jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)
    other = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)
    assert one == other, (schema, value)
    return one


def ask(live: Live, seed: int, **more: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": "Answer with a short JSON example."}],
        "max_tokens": MAX_TOKENS,
        "temperature": 1,
        "seed": seed,
        **more,
    }
    answer = live.client.post(
        "/v1/chat/completions", json=body, headers={"Authorization": "Bearer sk-anna"}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_ends_is_what_it_must_be(
    live: Live, soak_scale: float, soak_seed: int, record_property: Callable[[str, object], None], name: str
) -> None:
    schema = SCHEMAS[name]
    n = AT_FULL_SCALE if soak_scale == 1 else 1
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    ended = 0
    for i in range(n):
        choice = ask(live, soak_seed + i, response_format=wanted)
        said = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            assert valid(schema, said), said
            ended += 1
        else:
            assert choice["finish_reason"] == "length"
    ENDED.extend([True] * ended + [False] * (n - ended))
    record_property("generations", n)
    record_property("ended", ended)


def test_nearly_all_of_them_ended() -> None:
    """A reply that is cut says so; but bounds like these leave a small model little to go on with."""
    if len(ENDED) < len(SCHEMAS):
        pytest.skip("not all schemas were run")
    assert sum(ENDED) >= 0.8 * len(ENDED)


def test_without_a_format_it_is_not(live: Live) -> None:
    """The negative control: the model does not do it by itself."""
    said = [ask(live, seed, max_tokens=40)["message"]["content"] for seed in range(3)]
    assert not all(valid(SCHEMAS["a person"], one) for one in said)
