"""What a reply must be: each way to say it reaches the engine as one constraint."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine

from onceread.native.params import Constraint

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}
AS_JSON = json.dumps(SCHEMA, ensure_ascii=False)
ANY_OBJECT = '{"type": "object"}'


def constraint_of(client: TestClient, engine: FakeEngine, path: str, **body: Any) -> Constraint | None:
    whole = (
        {"prompt": "a", **body} if path == TEXT else {"messages": [{"role": "user", "content": "a"}], **body}
    )
    response = client.post(path, json=whole)
    assert response.status_code == 200, response.text
    assert "x-onceread-warning" not in response.headers
    return engine.requests[-1].sampling.constraint


WAYS = {
    "json_object": ({"response_format": {"type": "json_object"}}, "json_schema", ANY_OBJECT),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        "json_schema",
        AS_JSON,
    ),
    "llama-server's json_schema": (
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        "json_schema",
        AS_JSON,
    ),
    "llama-server's json_object": (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        "json_schema",
        AS_JSON,
    ),
    "json_schema as a parameter": ({"json_schema": SCHEMA}, "json_schema", AS_JSON),
    "any JSON": ({"json_schema": {}}, "json_schema", "{}"),
    "regex": ({"regex": "a+"}, "regex", "a+"),
    "grammar": ({"grammar": "root ::= [a]"}, "gbnf", "root ::= [a]"),
    "guided_json": ({"guided_json": SCHEMA}, "json_schema", AS_JSON),
    "guided_json as text": ({"guided_json": AS_JSON}, "json_schema", AS_JSON),
    "guided_regex": ({"guided_regex": "a+"}, "regex", "a+"),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, "regex", "yes|no"),
    "guided_grammar": ({"guided_grammar": "root ::= [a]"}, "gbnf", "root ::= [a]"),
    "structured_outputs json": ({"structured_outputs": {"json": SCHEMA}}, "json_schema", AS_JSON),
    "structured_outputs regex": ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
    "structured_outputs choice": ({"structured_outputs": {"choice": ["a b"]}}, "regex", "a b"),
    "structured_outputs grammar": (
        {"structured_outputs": {"grammar": "root ::= [a]"}},
        "gbnf",
        "root ::= [a]",
    ),
    "structured_outputs json_object": (
        {"structured_outputs": {"json_object": True}},
        "json_schema",
        ANY_OBJECT,
    ),
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("body", "kind", "text"), WAYS.values(), ids=WAYS)
def test_each_way_to_say_it(
    client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], kind: str, text: str
) -> None:
    found = constraint_of(client, engine, path, **body)
    assert found is not None
    assert (found.kind, found.text, found.param) == (kind, text, next(iter(body)))


NONE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "text": {"response_format": {"type": "text"}},
    "nulls": {"response_format": None, "json_schema": None, "regex": None, "grammar": None, "ebnf": None},
    "an empty grammar": {"grammar": ""},
    "nothing inside": {"structured_outputs": {}},
    "an object that is not asked for": {"structured_outputs": {"json_object": False}},
}


@pytest.mark.parametrize("body", NONE.values(), ids=NONE)
def test_no_constraint(client: TestClient, engine: FakeEngine, body: dict[str, Any]) -> None:
    assert constraint_of(client, engine, TEXT, **body) is None


def test_text_does_not_exclude_another_constraint(client: TestClient, engine: FakeEngine) -> None:
    found = constraint_of(client, engine, CHAT, response_format={"type": "text"}, regex="a")
    assert found == Constraint("regex", "a", "regex")


def test_properties_keep_their_order(client: TestClient, engine: FakeEngine) -> None:
    names = ["z", "a", "m", "b"]
    schema = {"type": "object", "properties": {name: {} for name in names}}
    found = constraint_of(client, engine, CHAT, json_schema=schema)
    assert found is not None
    assert list(json.loads(found.text)["properties"]) == names


def test_choices_are_taken_to_the_letter(client: TestClient, engine: FakeEngine) -> None:
    choices = ["a.c", "(x|y)", "é\n\\d", "😀"]
    found = constraint_of(client, engine, CHAT, guided_choice=choices)
    assert found is not None
    pythons = re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: rf"\U{int(code[1], 16):08x}", found.text)
    assert all(re.fullmatch(pythons, choice) for choice in choices)
    assert not re.fullmatch(pythons, "abc")


def test_a_message_to_continue_is_the_beginning(client: TestClient, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": '{"a": '}]
    body = {"messages": messages, "continue_final_message": True, "json_schema": {}}
    assert client.post(CHAT, json=body).status_code == 200
    found = engine.requests[-1].sampling.constraint
    assert found is not None
    assert found.begun == '{"a": '


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none(client: TestClient, engine: FakeEngine, number: str) -> None:
    raw = f'{{"prompt": "a", "json_schema": {{"const": {number}}}}}'
    response = client.post(TEXT, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "json_schema"
    assert engine.requests == []
