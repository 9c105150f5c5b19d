"""What Anthropic's clients are told when something is wrong: in their envelope, on every path of theirs."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import ErrorResponse
from fastapi.testclient import TestClient
from tests.server.anthropic_app import COUNT, MESSAGES, USER, App, F

from onceread.engine.errors import ContextLengthExceeded, EngineFailed, QueueFull
from onceread.server.app import create_app
from onceread.server.settings import Settings

SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.fixture
def app() -> App:
    return App()


def said(answer: Any, status: int, kind: str) -> Any:
    assert answer.status_code == status, answer.text
    body = answer.json()
    if kind != "request_too_large":  # in Anthropic's documents, but not in the client's types
        ErrorResponse.model_validate(body, strict=True)
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == answer.headers["request-id"]
    assert body["error"]["type"] == kind
    return body["error"]


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, fields]}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
ODD = {"type": "ephemeral", "ttl": "2h"}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no max_tokens", {"max_tokens": None}, "max_tokens"),
    ("no messages", {"messages": []}, "messages"),
    ("a number for messages", {"messages": 5}, "messages"),
    ("another role", {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ("no content", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("null content", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("an image", block(**IMAGE), "messages[1].content[1]"),
    ("a document", block(type="document", source={}), "messages[1].content[1]"),
    ("an unheard-of block", block(type="{x}"), "messages[1].content[1]"),
    ("a block without a type", block(text="a"), "messages[1].content[1]"),
    ("text that is none", block(type="text", text=5), "messages[1].content[1].text"),
    (
        "an image as a result",
        block(type="tool_result", tool_use_id="1", content=[IMAGE]),
        "messages[1].content[1].content[0]",
    ),
    ("a call by the user", block(**CALL), "messages[1]"),
    (
        "a result by the assistant",
        {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
        "messages[0]",
    ),
    ("an image in the system prompt", {"system": [IMAGE]}, "system[0]"),
    ("a tool without a schema", {"tools": [{"name": "f"}]}, "tools[0]"),
    ("a tool with an odd name", {"tools": [{**F, "name": "f g"}]}, "tools[0].name"),
    ("two tools of one name", {"tools": [F, F]}, "tools"),
    ("no tool to choose", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("a tool that is not there", {"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ("a choice without a name", {"tools": [F], "tool_choice": {"type": "tool"}}, "tool_choice"),
    ("a hot temperature", {"temperature": 2.5}, "temperature"),
    ("an empty stop sequence", {"stop_sequences": [""]}, "stop_sequences[0]"),
    ("a container", {"container": "c"}, "container"),
    ("servers of tools", {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ("an odd breakpoint", {"cache_control": {"type": "forever"}}, "cache_control.type"),
    ("an odd ttl", {"tools": [{**F, "cache_control": ODD}]}, "tools[0].cache_control.ttl"),
    ("a call to continue", {"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "messages"),
    (
        "a forced call to a message that is continued",
        {"messages": [USER, {"role": "assistant", "content": "So"}], "tools": [F], "tool_choice": {"type": "any"}},
        "tool_choice",
    ),
    ("a reserved variable", {"chat_template_kwargs": {"messages": []}}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
@pytest.mark.parametrize("stream", [None, True], ids=["whole", "stream"])
def test_bad_requests_name_what_is_wrong(app: App, body: Any, param: str, stream: Any) -> None:
    error = said(app.post(stream=stream, **body), 400, "invalid_request_error")
    assert error["param"] == param
    assert app.engine.requests == []
    if "max_tokens" not in body:
        for irrelevant in ("temperature", "stop_sequences"):
            if irrelevant in body:
                return
        said(app.post(COUNT, **body), 400, "invalid_request_error")


def test_blocks_that_can_not_be_read_are_named(app: App) -> None:
    error = app.post(**block(**IMAGE)).json()["error"]
    assert error["message"].startswith(
        "messages[1].content[1]: a block of the type 'image' can't be read here"
    )
    assert error["code"] == "unsupported_content"
    assert "'{x}'" in app.post(**block(type="{x}")).json()["error"]["message"]


def test_bodies_that_are_none(app: App) -> None:
    for raw, kind in ((b"{", 400), (b"[]", 400)):
        answer = app.client.post(MESSAGES, content=raw, headers={"content-type": "application/json"})
        said(answer, kind, "invalid_request_error")
    said(app.client.post(MESSAGES, content=b"x"), 415, "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_prompts_that_are_too_long_are_told_as_agents_know_it(app: App, stream: bool) -> None:
    app.engine.refuses = ContextLengthExceeded(4096, 4096)
    error = said(app.post(stream=stream), 400, "invalid_request_error")
    assert error["message"] == "prompt is too long: 4096 tokens > 4095 maximum"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (4096, 4096)
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("refuses", "status", "kind"),
    [
        (QueueFull(5, 3), 503, "overloaded_error"),
        (EngineFailed("broken"), 500, "api_error"),
        (RuntimeError("a bug"), 500, "api_error"),
    ],
    ids=["full", "failed", "a bug"],
)
def test_what_is_not_the_clients_fault(app: App, refuses: Exception, status: int, kind: str) -> None:
    app.engine.refuses = refuses
    for stream in (False, True):
        answer = app.post(stream=stream)
        said(answer, status, kind)
        assert ("retry-after" in answer.headers) == (status == 503)


def test_a_server_that_is_still_loading() -> None:
    client = TestClient(create_app(None, None, Settings()))
    for path in (MESSAGES, COUNT):
        said(client.post(path, json={}), 503, "overloaded_error")


def test_keys() -> None:
    app = App(settings={"api_keys": ["anna=sk-anna"]})
    said(app.post(), 401, "authentication_error")
    for header in ({"x-api-key": "sk-anna"}, {"authorization": "Bearer sk-anna"}):
        body = {"max_tokens": 5, "messages": [USER]}
        assert app.client.post(MESSAGES + "?beta=true", json=body, headers=header).status_code == 200
    said(app.client.post(MESSAGES, json={}, headers={"x-api-key": "other"}), 401, "authentication_error")


def test_paths_and_methods_that_are_none(app: App) -> None:
    said(app.client.get(MESSAGES), 405, "invalid_request_error")
    said(app.client.post(MESSAGES + "/batches", json={}), 404, "not_found_error")


def test_a_body_that_is_too_large() -> None:
    app = App(settings={"max_body_bytes": 2000})
    said(app.post(system="x" * 2000), 413, "request_too_large")


def test_headers_of_the_client_are_taken_as_they_are(app: App) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,whatever"}
    answer = app.client.post(
        MESSAGES + "?beta=true", json={"model": "m", "max_tokens": 5, "messages": [USER]}, headers=headers
    )
    assert answer.status_code == 200
    assert answer.headers["request-id"].startswith("req_")
    assert "x-onceread-warning" not in answer.headers


def test_a_schema_that_can_not_be_enforced_is_named_as_the_client_did() -> None:
    app = App()
    wanted = {"type": "json_schema", "schema": 5}
    error = said(app.post(output_config={"format": wanted}), 400, "invalid_request_error")
    assert error["param"] == "output_config.format.schema"
    both = {"type": "json_schema", "schema": {"not": {}}}
    error = said(app.post(output_config={"format": both}, tools=[F]), 400, "invalid_request_error")
    assert error["param"] == "output_config.format"
    assert "response_format" not in error["message"]


def test_models_have_two_shapes(app: App) -> None:
    ours = app.client.get("/v1/models").json()
    headers = {"anthropic-version": "2023-06-01"}
    theirs = app.client.get("/v1/models", headers=headers).json()
    assert ours["object"] == "list"
    (model,) = theirs.pop("data")
    assert theirs == {"has_more": False, "first_id": "fake", "last_id": "fake"}
    assert (model["type"], model["id"], model["display_name"]) == ("model", "fake", "fake")
    assert app.client.get("/v1/models/fake", headers=headers).json() == model
    assert app.client.get("/v1/models/fake").json()["object"] == "model"
