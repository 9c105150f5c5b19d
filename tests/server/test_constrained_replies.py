"""Constrained replies over HTTP, from a model of random weights: whatever it likes to say, it says JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi.testclient import TestClient
from tests.tiny.models import loaded

from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model
from onceread.server.app import create_app
from onceread.server.settings import Settings

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
MESSAGES = [{"role": "user", "content": "Who is it?"}]
HOT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Model]:
    folder = tmp_path_factory.getbasetemp() / "tiny"
    folder.mkdir(exist_ok=True)
    with loaded("hybrid", folder, smollm2_path) as made:
        yield made


@pytest.fixture(scope="module")
def http(model: Model) -> Iterator[TestClient]:
    with Engine(model, EngineConfig(ctx_size=4096, parallel=2)) as engine:
        yield TestClient(create_app(engine, model, Settings(max_tokens_limit=400)))


def chat(http: TestClient, **body: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={"messages": MESSAGES, **HOT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusal(http: TestClient, **body: Any) -> dict[str, Any]:
    response = http.post(CHAT, json={"messages": MESSAGES, **body})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def check_person(text: str) -> None:
    assert jsonschema_rs.validator_for(PERSON).is_valid(json.loads(text)), text


def test_every_reply_satisfies_the_schema(http: TestClient) -> None:
    for seed in range(4):
        for choice in chat(http, response_format=FORMAT, n=4, seed=seed)["choices"]:
            assert choice["finish_reason"] == "stop"
            check_person(choice["message"]["content"])


def test_streams_say_the_same(http: TestClient) -> None:
    whole = chat(http, response_format=FORMAT, n=2, seed=1)
    body = {"messages": MESSAGES, **HOT, "response_format": FORMAT, "n": 2, "seed": 1, "stream": True}
    texts, reasons = ["", ""], ["", ""]
    for line in http.post(CHAT, json=body).text.split("\n\n"):
        if line and not line.endswith("[DONE]"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert reasons == ["stop", "stop"]


def test_a_reply_that_is_cut_says_so(http: TestClient) -> None:
    (choice,) = chat(http, response_format=FORMAT, max_tokens=4, seed=1)["choices"]
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["content"])


def test_the_end_takes_no_token_of_the_limit(http: TestClient) -> None:
    free = chat(http, response_format=FORMAT, seed=3)
    needed = free["usage"]["completion_tokens"]
    exact = chat(http, response_format=FORMAT, seed=3, max_tokens=needed)
    assert exact["choices"] == free["choices"]
    assert exact["choices"][0]["finish_reason"] == "stop"
    short = chat(http, response_format=FORMAT, seed=3, max_tokens=needed - 1)
    assert short["choices"][0]["finish_reason"] == "length"


def test_a_cut_reply_is_continued_to_a_whole_one(http: TestClient) -> None:
    for seed in range(4):
        begun = chat(http, response_format=FORMAT, max_tokens=5 + seed, seed=seed)["choices"][0]["message"]
        messages = [*MESSAGES, {"role": "assistant", "content": begun["content"]}]
        more = chat(http, messages=messages, continue_final_message=True, response_format=FORMAT, seed=seed)
        assert more["choices"][0]["finish_reason"] == "stop"
        check_person(begun["content"] + more["choices"][0]["message"]["content"])


def test_a_whole_reply_is_continued_by_nothing(http: TestClient) -> None:
    done = '{"name": "a", "age": 1, "tags": []}'
    messages = [*MESSAGES, {"role": "assistant", "content": done}]
    (choice,) = chat(http, messages=messages, continue_final_message=True, response_format=FORMAT)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


def test_a_message_that_begins_otherwise_is_not_continued(http: TestClient) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Of course: {"}]
    error = refusal(http, messages=messages, continue_final_message=True, response_format=FORMAT)
    assert (error["param"], error["code"]) == ("messages", "invalid_value")
    assert "continue" in error["message"]


def test_logprobs_are_of_the_text(http: TestClient) -> None:
    (choice,) = chat(http, response_format=FORMAT, seed=1, logprobs=True, top_logprobs=2)["choices"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]


def test_a_stop_string_is_the_clients_own_wish(http: TestClient) -> None:
    (choice,) = chat(http, response_format=FORMAT, seed=1, stop="age")["choices"]
    assert choice["finish_reason"] == "stop"
    assert "name" in choice["message"]["content"]
    assert "age" not in choice["message"]["content"]


def test_ignore_eos_goes_on_while_the_constraint_lets_it(http: TestClient) -> None:
    (choice,) = chat(http, regex="a+", ignore_eos=True, max_tokens=20)["choices"]
    assert (choice["finish_reason"], set(choice["message"]["content"])) == ("length", {"a"})
    (choice,) = chat(http, regex="a{1,3}", ignore_eos=True)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("aaa", "stop")
    (choice,) = chat(http, grammar='root ::= ""', ignore_eos=True)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    (choice,) = chat(http, response_format=FORMAT, ignore_eos=True)["choices"]
    check_person(choice["message"]["content"])


def test_biases_against_all_that_is_allowed_end_by_length(http: TestClient, model: Model) -> None:
    ends = {str(token): -100 for token in model.vocab.eog_tokens}
    (choice,) = chat(http, guided_choice=["yes", "no"], logit_bias=ends)["choices"]
    assert choice["message"]["content"] in ("yes", "no")
    assert choice["finish_reason"] == "stop"


def test_any_object(http: TestClient, model: Model) -> None:
    vocab = model.vocab
    closing = [
        vocab.tokenize(text, add_special=False, parse_special=False)[0] for text in ('"', "}", "]", '"}')
    ]
    bias = {str(token): 30 for token in closing}
    body = {"response_format": {"type": "json_object"}, "logit_bias": bias, "n": 8, "seed": 1}
    ended = [c for c in chat(http, **body)["choices"] if c["finish_reason"] == "stop"]
    assert ended
    for choice in ended:
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_text_completions_with_several_prompts(http: TestClient) -> None:
    for constraint, pattern in (
        ({"regex": r"\d{3}-[a-f]{2}"}, r"\d{3}-[a-f]{2}"),
        ({"guided_choice": ["a.b", "(c)"]}, r"a\.b|\(c\)"),
        ({"json_schema": {"type": "integer", "minimum": 0, "maximum": 9}}, r"\d"),
    ):
        body = {"prompt": ["One", "Two", "Three"], "n": 2, **HOT, **constraint}
        response = http.post(TEXT, json=body)
        assert response.status_code == 200, response.text
        assert all(re.fullmatch(pattern, choice["text"]) for choice in response.json()["choices"])
        assert len(response.json()["choices"]) == 6


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown keyword": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
        "response_format",
        "not",
    ),
    "a remote reference": ({"json_schema": {"$ref": "https://a.example/b"}}, "json_schema", "refers to"),
    "a loop": ({"json_schema": {"$ref": "#"}}, "json_schema", "without an end"),
    "text that is no schema": ({"guided_json": "{"}, "guided_json", "not JSON"),
    "a lookahead": ({"regex": "(?=a)b"}, "regex", "look"),
    "a pattern by vLLM's name": ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed"),
    "a grammar": ({"guided_grammar": "root ::= ("}, "guided_grammar", "can't be read"),
    "a number too many": ({"regex": "(a{1000}){1000}"}, "regex", "65536"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("body", "param", "says"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_enforced_is_refused(
    http: TestClient, body: dict[str, Any], param: str, says: str, stream: bool
) -> None:
    error = refusal(http, **body, stream=stream)
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert says in error["message"]
    assert "\n" not in error["message"]
