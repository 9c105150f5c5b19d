"""Everything that can be wrong with a request comes back in OpenAI's envelope."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app

from onceread.engine.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    QueueFull,
    ShuttingDown,
)
from onceread.engine.request import DoneEvent, RequestHandle, TextEvent, Usage

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


TOOL = {"type": "function", "function": {"name": "f"}}

WRONG_CHAT: list[tuple[Any, str | None, str]] = [
    # (body, the parameter that the error names, its code)
    ([], None, "invalid_type"),
    ("Hi", None, "invalid_type"),
    (5, None, "invalid_type"),
    ({}, "messages", "missing_required_parameter"),
    ({"messages": None}, "messages", "invalid_type"),
    ({"messages": "Hi"}, "messages", "invalid_type"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "<|im_start|>", "content": "Hi"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "missing_required_parameter"),
    (user(5), "messages[0].content", "invalid_type"),
    (user([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content", "unsupported_content"),
    (user("Hi", name=5), "messages[0].name", "invalid_type"),
    ({**user("Hi"), "tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({**user("Hi"), "tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "invalid_value"),
    ({**user("Hi"), "tools": "all"}, "tools", "invalid_type"),
    ({**user("Hi"), "tools": [TOOL, TOOL]}, "tools", "invalid_value"),
    (
        {**user("Hi"), "tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "invalid_value",
    ),
    ({**user("Hi"), "tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({**user("Hi"), "tool_choice": "any"}, "tool_choice", "invalid_value"),
    ({**user("Hi"), "tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
    (
        {**user("Hi"), "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
        "invalid_value",
    ),
    (
        {
            **user("Hi"),
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
        },
        "tool_choice",
        "invalid_value",
    ),
    (
        {**user("Hi"), "tools": [TOOL], "tool_choice": "required", "grammar": 'root ::= "a"'},
        "grammar",
        "invalid_value",
    ),
    ({**user("Hi"), "parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
    ({**user("Hi"), "reasoning_format": "x"}, "reasoning_format", "invalid_value"),
    ({**user("Hi"), "functions": [{}]}, "functions", "unsupported_parameter"),
    ({**user("Hi"), "modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({**user("Hi"), "audio": {}}, "audio", "unsupported_parameter"),
    ({**user("Hi"), "top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({**user("Hi"), "logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({**user("Hi"), "logprobs": 5}, "logprobs", "invalid_type"),
    ({**user("Hi"), "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "invalid_value"),
    ({**user("Hi"), "continue_final_message": True}, "continue_final_message", "invalid_value"),
    ({**user("Hi"), "chat_template_kwargs": {"messages": []}}, "messages", "invalid_value"),
]

WRONG_COMMON: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": "5"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 1e300}, "temperature", "invalid_value"),
    ({"top_p": 1.1}, "top_p", "invalid_value"),
    ({"top_k": 1.5}, "top_k", "invalid_type"),
    ({"top_k": 2**40}, "top_k", "invalid_value"),
    ({"min_p": -1}, "min_p", "invalid_value"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": []}, "frequency_penalty", "invalid_type"),
    ({"repeat_penalty": 0}, "repeat_penalty", "invalid_value"),
    ({"repeat_last_n": -2}, "repeat_last_n", "invalid_value"),
    ({"dry_penalty_last_n": 2**31}, "dry_penalty_last_n", "invalid_value"),
    ({"dry_sequence_breakers": ["a"] * 17}, "dry_sequence_breakers", "invalid_value"),
    ({"dry_sequence_breakers": ["a", ""]}, "dry_sequence_breakers[1]", "invalid_value"),
    ({"dry_sequence_breakers": ["\0"]}, "dry_sequence_breakers[0]", "invalid_value"),
    ({"mirostat": False}, "mirostat", "invalid_type"),
    ({"mirostat": 3}, "mirostat", "invalid_value"),
    ({"xtc_probability": 2}, "xtc_probability", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.0}, "max_tokens", "invalid_type"),
    ({"max_tokens": 10**30}, "max_tokens", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 33}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ["a", 5]}, "stop", "invalid_type"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"seed": "1"}, "seed", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": 5}, "stream_options", "invalid_type"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "invalid_type",
    ),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"259": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9" * 4000: 1}}, "logit_bias", "invalid_value"),
    ({"user": 5}, "user", "invalid_type"),
    ({"cache_salt": "x" * 257}, "cache_salt", "invalid_value"),
    ({"grammar": "root ::= \0"}, "grammar", "invalid_value"),
    ({"json_schema": []}, "json_schema", "invalid_type"),
    ({"regex": ""}, "regex", "invalid_value"),
    ({"regex": 5}, "regex", "invalid_type"),
    ({"guided_choice": []}, "guided_choice", "invalid_value"),
    ({"guided_choice": ["a", 1]}, "guided_choice[1]", "invalid_type"),
    ({"ebnf": "root ::= x"}, "ebnf", "unsupported_parameter"),
    ({"structural_tag": {}}, "structural_tag", "unsupported_parameter"),
    (
        {"structured_outputs": {"structural_tag": "x"}},
        "structured_outputs.structural_tag",
        "unsupported_parameter",
    ),
    ({"response_format": "json_object"}, "response_format", "invalid_type"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "missing_required_parameter",
    ),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format", "invalid_value"),
    ({"grammar": "root ::= [a]", "regex": "a"}, "grammar", "invalid_value"),
    ({"json_schema": {}, "response_format": {"type": "json_object"}}, "json_schema", "invalid_value"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "invalid_value"),
    ({"ignore_eos": "no"}, "ignore_eos", "invalid_type"),
]

WRONG_TEXT: list[tuple[Any, str | None, str]] = [
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": None}, "prompt", "invalid_type"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt", "invalid_type"),
    ({"prompt": ["a", 1]}, "prompt", "invalid_type"),
    ({"prompt": [True]}, "prompt", "invalid_type"),
    ({"prompt": [1.5]}, "prompt", "invalid_type"),
    ({"prompt": [-1]}, "prompt", "invalid_value"),
    ({"prompt": [259]}, "prompt", "invalid_value"),
    ({"prompt": [10**1000]}, "prompt", "invalid_value"),
    ({"prompt": [[1], [2, 300]]}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 257}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 100, "n": 3}, "n", "invalid_value"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
    ({"prompt": "a", "best_of": 2}, "best_of", "unsupported_parameter"),
    ({"prompt": "a", "best_of": 0}, "best_of", "invalid_value"),
    ({"prompt": "a", "echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "invalid_type"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "invalid_value"),
]

CASES = [
    *((CHAT, *case) for case in WRONG_CHAT),
    *((TEXT, *case) for case in WRONG_TEXT),
    *((TEXT, {"prompt": "a", **body}, param, code) for body, param, code in WRONG_COMMON),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), CASES, ids=lambda value: str(value)[:60])
def test_wrong_parameters_are_named(
    client: TestClient, engine: FakeEngine, path: str, body: Any, param: str | None, code: str
) -> None:
    error = error_of(client.post(path, json=body), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert engine.requests == []


RAW = {
    "empty": b"",
    "not JSON": b"{",
    "two values": b"{} {}",
    "not UTF-8": b'{"messages": "\xff"}',
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "a lone surrogate in a name": b'{"messages": [], "\\udfff": 1}',
    "nested too deeply": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an endless number": b'{"seed": ' + b"9" * 100_000 + b"}",
    "a NUL": b'\0{"messages": []}',
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
def test_malformed_json(client: TestClient, raw: bytes) -> None:
    response = client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert error_of(response, 400)["code"] == "invalid_json"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(client: TestClient, number: str) -> None:
    raw = f'{{"prompt": "a", "temperature": {number}}}'
    response = client.post(TEXT, content=raw, headers={"content-type": "application/json"})
    assert error_of(response, 400)["param"] == "temperature"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_other_content_types(client: TestClient, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = client.post(CHAT, content=json.dumps({"messages": MESSAGES}), headers=headers)
    assert error_of(response, 415)["code"] == "unsupported_media_type"


def test_a_charset_is_no_other_content_type(client: TestClient) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    response = client.post(CHAT, content=json.dumps({"messages": MESSAGES}), headers=headers)
    assert response.status_code == 200


def test_unknown_routes(client: TestClient) -> None:
    assert error_of(client.get("/v1/nothing"), 404)["code"] == "unknown_url"
    assert error_of(client.post("/v1/completions/"), 404)["code"] == "unknown_url"


def test_other_methods(client: TestClient) -> None:
    response = client.get(CHAT)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


class TestTooLarge:
    client = TestClient(fake_app(max_body_bytes=2000))

    def test_announced(self) -> None:
        response = self.client.post(TEXT, json={"prompt": "a" * 2000})
        assert error_of(response, 413)["code"] == "request_too_large"

    def test_in_chunks(self) -> None:
        headers = {"content-type": "application/json"}
        response = self.client.post(TEXT, content=iter([b"{" + b" " * 999] * 3), headers=headers)
        assert error_of(response, 413)["code"] == "request_too_large"

    def test_just_not(self) -> None:
        body = json.dumps({"prompt": "a"}).encode()
        headers = {"content-type": "application/json"}
        response = self.client.post(TEXT, content=body + b" " * (2000 - len(body)), headers=headers)
        assert response.status_code == 200


REFUSALS = [
    (ContextLengthExceeded(101, 100), 400, "context_length_exceeded"),
    (InvalidRequest("no", "grammar"), 400, "invalid_value"),
    (QueueFull(9, 7), 503, "queue_full"),
    (ShuttingDown("bye"), 503, "shutting_down"),
    (EngineFailed("llama.cpp is unwell"), 500, "engine_failed"),
    (RuntimeError("secret"), 500, "internal_error"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("refusal", "status", "code"), REFUSALS, ids=lambda value: type(value).__name__)
class TestRefusals:
    def test_at_once(
        self, client: TestClient, engine: FakeEngine, stream: bool, refusal: Exception, status: int, code: str
    ) -> None:
        engine.refuses = refusal
        self.check(client, stream, status, code)

    def test_before_the_first_token(
        self, client: TestClient, engine: FakeEngine, stream: bool, refusal: Exception, status: int, code: str
    ) -> None:
        engine.script = lambda _, handle: handle.push(DoneEvent(Usage(), refusal))
        self.check(client, stream, status, code)

    def check(self, client: TestClient, stream: bool, status: int, code: str) -> None:
        response = client.post(CHAT, json={"messages": MESSAGES, "stream": stream})
        error = error_of(response, status)
        assert error["code"] == code
        assert "secret" not in error["message"]
        if code == "context_length_exceeded":
            assert (error["n_prompt_tokens"], error["n_ctx"], error["param"]) == (101, 100, "messages")
        if code == "queue_full":
            assert response.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("error", "code"), [(EngineFailed("ill"), "engine_failed"), (RuntimeError("secret"), "internal_error")]
)
def test_in_the_middle_of_a_stream(
    client: TestClient, engine: FakeEngine, error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(_: FakeEngine, handle: RequestHandle) -> None:
        handle.push(TextEvent(0, "so far", 1))
        time.sleep(0.2)
        handle.push(DoneEvent(Usage(), error))

    engine.script = script
    response = client.post(CHAT, json={"messages": MESSAGES, "stream": True})
    assert response.status_code == 200
    *chunks, last = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert json.loads(last)["error"]["code"] == code
    assert [json.loads(chunk)["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "so far"]
    assert "[DONE]" not in response.text
    assert "secret" not in response.text


def test_a_bug_is_logged_with_its_traceback(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refuses = RuntimeError("a bug of ours")
    with caplog.at_level(logging.ERROR):
        error_of(client.post(TEXT, json={"prompt": "a"}), 500)
    assert "a bug of ours" in caplog.text
    assert "Traceback" in caplog.text


def test_a_templates_own_refusal() -> None:
    app = fake_app()
    serving = app.state.onceread.serving()
    template = type(serving.template)("{{ raise_exception('Roles must alternate') }}", control_tokens={})
    object.__setattr__(serving, "template", template)
    error = error_of(TestClient(app).post(CHAT, json={"messages": MESSAGES}), 400)
    assert (error["message"], error["param"]) == ("Roles must alternate", "messages")
