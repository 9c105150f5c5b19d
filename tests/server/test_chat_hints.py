"""What a chat request says beside the conversation: its session, its reasoning effort, or just how long it is."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, FakeModel

from onceread.server.app import create_app
from onceread.server.settings import Settings

CHAT, TEXT, COUNT = "/v1/chat/completions", "/v1/completions", "/v1/chat/completions/input_tokens"
ASKED: Any = {"messages": [{"role": "user", "content": "Hi"}]}
TEMPLATE = "{{ messages[0].content }}|{{ enable_thinking }}|{{ reasoning_effort }}"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> TestClient:
    return TestClient(create_app(engine, FakeModel(chat_template=TEMPLATE), Settings()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("path", "asked"), [(CHAT, ASKED), (TEXT, {"prompt": "Hi"})], ids=["chat", "text"])
def test_the_session_comes_from_the_body_or_the_header(
    client: TestClient, engine: FakeEngine, path: str, asked: Any
) -> None:
    header = {"x-session-id": "from the header"}
    client.post(path, json={**asked, "prompt_cache_key": "from the body"}, headers=header)
    client.post(path, json=asked, headers=header)
    client.post(path, json=asked)
    assert [request.session for request in engine.requests] == ["from the body", "from the header", None]
    assert len({request.namespace for request in engine.requests}) == 1
    refused = client.post(path, json=asked, headers={"x-session-id": "x" * 257})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-session-id")


@pytest.mark.parametrize(
    ("said", "rendered"),
    [
        ({}, "Hi||"),
        ({"reasoning_effort": "high"}, "Hi|True|high"),
        ({"reasoning_effort": "none"}, "Hi|False|none"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "Hi|False|low"),
    ],
)
def test_reasoning_effort_is_the_templates(
    client: TestClient, engine: FakeEngine, said: Any, rendered: str
) -> None:
    assert client.post(CHAT, json={**ASKED, **said}).status_code == 200
    assert bytes(engine.requests[0].prompt).decode() == rendered


def test_counting_reads_nothing_and_is_what_it_would_cost(client: TestClient, engine: FakeEngine) -> None:
    counted = client.post(COUNT, json=ASKED)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": 4}
    assert engine.requests == []
    assert client.post(CHAT, json=ASKED).json()["usage"]["prompt_tokens"] == 4
    long = {"messages": [{"role": "user", "content": "x" * 5000}]}
    assert client.post(COUNT, json=long).json()["input_tokens"] == 5002
    bad = client.post(COUNT, json={"messages": []})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "messages")


def test_counting_tells_of_what_it_did_not_understand(client: TestClient) -> None:
    assert (
        client.post(COUNT, json={**ASKED, "zzz": 1}).headers["x-onceread-warning"]
        == "ignored parameters: zzz"
    )
