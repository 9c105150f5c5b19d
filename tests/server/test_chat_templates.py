"""A server whose chat template was chosen: by a format's name or written out, and what ends its replies."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.anthropic_app import App, Says
from tests.server.fakes import FakeEngine, fake_app

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED: Any = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("plain", b"User: Hi\nAssistant:"),
        ("mistral-instruct", b" [INST] Hi [/INST]"),
        ("{{ messages[0].content }}?", b"Hi?"),
    ],
    ids=["by name", "by another name", "written out"],
)
def test_the_template_makes_the_prompt(engine: FakeEngine, template: str, prompt: bytes) -> None:
    assert TestClient(fake_app(engine, chat_template=template)).post(CHAT, json=ASKED).status_code == 200
    assert bytes([token for token in engine.requests[-1].prompt if token < 256]) == prompt


def test_what_ends_a_reply_of_the_format_stops_a_chat_beside_what_the_client_asked(
    engine: FakeEngine,
) -> None:
    client = TestClient(fake_app(engine, chat_template="plain"))
    client.post(CHAT, json={**ASKED, "stop": ["###"]})
    client.post(CHAT, json=ASKED)
    client.post(TEXT, json={"prompt": "Hi"})
    assert [request.stop for request in engine.requests] == [("###", "\nUser:"), ("\nUser:",), ()]


def test_a_role_that_the_format_lacks_is_the_clients_mistake(engine: FakeEngine) -> None:
    client = TestClient(fake_app(engine, chat_template="phi2"))
    refused = client.post(CHAT, json={"messages": [{"role": "system", "content": "x"}, *ASKED["messages"]]})
    assert refused.status_code == 400
    assert "phi2 knows no system messages" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", ["gemma", "phi2", "plain"])
def test_tools_are_told_and_their_results_handed_back_in_words(engine: FakeEngine, name: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = {
        "messages": [
            *ASKED["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "four"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    client = TestClient(fake_app(engine, chat_template=name))
    assert client.post(CHAT, json=asked).status_code == 200
    prompt = bytes([token for token in engine.requests[-1].prompt if token < 256]).decode()
    parts = ["# Tools", "Hi", '{"x": 1}', "four"]
    assert sorted(parts, key=prompt.index) == parts


def test_anthropics_clients_are_told_of_their_own_stops_only() -> None:
    app = App(settings={"chat_template": "plain"})
    app.says = Says(stop_string="\nUser:")
    message, delta = app.ask(), app.stream()[-2]["delta"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert delta == {"stop_reason": "end_turn", "stop_sequence": None}
