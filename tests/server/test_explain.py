"""``"explain": true``: where a prompt left the nearest known path, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine

from onceread.engine.request import DoneEvent, Explanation, FinishEvent, RequestHandle, TextEvent, Usage

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}


def explaining(engine: FakeEngine, handle: RequestHandle) -> None:
    """Knows all prompts up to their last token, if it is asked, and none that begins with `?`."""
    prompt = handle.request.prompt
    found = None
    if handle.request.explain and prompt[0] != ord("?"):
        found = Explanation(len(prompt) - 1, "shared", "was", "is")
    handle.push(TextEvent(0, "a", 1))
    handle.push(FinishEvent(0, "stop"))
    handle.push(DoneEvent(Usage(len(prompt), 1), explanation=found))


def expected(position: int) -> dict[str, Any]:
    return {"position": position, "shared": "shared", "known": "was", "prompt": "is"}


def ask(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    """The answer, or a stream's last chunk."""
    response = client.post(path, json={**BODIES[path], **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        answer: dict[str, Any] = response.json()
        return answer
    chunks = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert chunks.pop() == "[DONE]"
    assert not any("explain" in json.loads(chunk) for chunk in chunks[:-1])
    last: dict[str, Any] = json.loads(chunks[-1])
    return last


@pytest.fixture(autouse=True)
def _explains(engine: FakeEngine) -> None:
    engine.script = explaining


STREAMS = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]
stream_or_not = pytest.mark.parametrize("stream", STREAMS, ids=["whole", "stream", "with usage"])


@stream_or_not
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_of_one_prompt(client: TestClient, engine: FakeEngine, path: str, stream: dict[str, Any]) -> None:
    answer = ask(client, path, explain=True, **stream)
    assert answer["explain"] == expected(len(engine.requests[0].prompt) - 1)


@stream_or_not
def test_of_several_prompts_in_their_order(client: TestClient, stream: dict[str, Any]) -> None:
    answer = ask(client, TEXT, prompt=["abc", "?", "a"], explain=True, **stream)
    assert answer["explain"] == [expected(2), None, expected(0)]


@stream_or_not
def test_nothing_known_is_null(client: TestClient, stream: dict[str, Any]) -> None:
    assert ask(client, TEXT, prompt="?", explain=True, **stream)["explain"] is None


@stream_or_not
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_only_who_asks_is_told(client: TestClient, path: str, stream: dict[str, Any]) -> None:
    assert "explain" not in ask(client, path, **stream)
    assert "explain" not in ask(client, path, explain=False, **stream)


def test_it_is_yes_or_no(client: TestClient) -> None:
    response = client.post(TEXT, json={"prompt": "a", "explain": "yes"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "explain")
