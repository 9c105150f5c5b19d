"""Ollama's API over a fake engine."""

from __future__ import annotations

import json
import time
from typing import Any

import ollama
import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app
from tests.server.test_tools import Serving
from tests.server.tool_templates import QWEN

from onceread.engine.errors import ContextLengthExceeded, EngineFailed
from onceread.engine.request import DoneEvent, RequestHandle, TextEvent, Usage

HI = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
]
WARNING = "x-onceread-warning"
FIGURES = {
    "done_reason": "stop",
    "load_duration": 0,
    "prompt_eval_count": 1,
    "prompt_cached_count": 0,
    "prompt_eval_duration": 250_000_000,
    "eval_count": 2,
    "eval_duration": 500_000_000,
}


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json={"model": "any", "stream": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


def lines(client: TestClient, path: str, **body: Any) -> list[Any]:
    response = client.post(path, json={"model": "any", **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def error_of(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    (name,) = response.json()
    assert name == "error"
    return str(response.json()["error"])


class TestAnswers:
    def test_chat(self, client: TestClient) -> None:
        said = post(client, "/api/chat", messages=HI)
        ollama.ChatResponse.model_validate(said, strict=True)
        assert said["message"] == {"role": "assistant", "content": "héllo"}
        assert (said["model"], said["done"]) == ("fake", True)
        assert said["total_duration"] >= 0
        n = said["prompt_eval_count"]
        assert {key: said[key] for key in FIGURES} == {
            **FIGURES, "prompt_eval_count": n, "prompt_cached_count": n - 1,
        }  # fmt: skip

    @pytest.mark.parametrize("stream", [{}, {"stream": True}, {"stream": None}], ids=str)
    def test_a_chat_is_a_stream_unless_that_is_refused(self, client: TestClient, stream: Any) -> None:
        *parts, last = lines(client, "/api/chat", messages=HI, **stream)
        for part in (*parts, last):
            ollama.ChatResponse.model_validate(part, strict=True)
        assert [part["message"]["content"] for part in parts] == ["hé", "llo"]
        assert not any(part["done"] for part in parts)
        whole = post(client, "/api/chat", messages=HI)
        assert {key: last[key] for key in FIGURES} == {key: whole[key] for key in FIGURES}
        assert (last["done"], last["message"]["content"]) == (True, "")

    def test_generate(self, client: TestClient, engine: FakeEngine) -> None:
        said = post(client, "/api/generate", prompt="a", raw=True)
        ollama.GenerateResponse.model_validate(said, strict=True)
        assert {key: said[key] for key in FIGURES} == FIGURES
        assert said["response"] == "héllo"
        parts = lines(client, "/api/generate", prompt="a", raw=True)
        assert "".join(part["response"] for part in parts) == "héllo"
        assert [list(request.prompt) for request in engine.requests] == [[97], [97]]

    def test_generate_goes_through_the_template(self, client: TestClient, engine: FakeEngine) -> None:
        post(client, "/api/generate", prompt="Hi", system="Be brief.")
        post(client, "/api/chat", messages=[{"role": "system", "content": "Be brief."}, *HI])
        first, second = engine.requests
        assert first == second

    def test_nothing_to_say_loads_the_model(self, client: TestClient, engine: FakeEngine) -> None:
        for path in ("/api/chat", "/api/generate"):
            said = post(client, path)
            assert (said["done"], said["done_reason"]) == (True, "load")
        assert engine.requests == []


class TestParameters:
    def test_options(self, client: TestClient, engine: FakeEngine) -> None:
        options = {"num_predict": 7, "temperature": 0, "top_k": 3, "min_p": 0.2, "seed": 5, "stop": ["x"]}
        options["repeat_penalty"] = 1.3
        for path, body in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "a", "raw": True})):
            post(client, path, options=options, **body)
            request = engine.requests[-1]
            sampling = request.sampling
            assert (request.max_tokens, request.stop) == (7, ("x",))
            assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0, 3, 0.2, 5)
            assert sampling.repeat_penalty == 1.3
        for limit in (-1, -2, None):
            post(client, "/api/chat", messages=HI, options={"num_predict": limit})
            assert engine.requests[-1].max_tokens is None

    def test_what_changes_nothing_is_named(self, client: TestClient) -> None:
        body = {
            "messages": HI,
            "keep_alive": "5m",
            "options": {"num_ctx": 2048, "top_k": 3},
            "truncate": True,
        }
        response = client.post("/api/chat", json=body)
        assert response.headers[WARNING] == "ignored parameters: options.num_ctx, truncate"

    @pytest.mark.parametrize(
        ("format_", "schema"),
        [
            ("json", {"type": "object"}),
            ({"type": "string"}, {"type": "string"}),
            ({}, {}),
            ("", None),
            (None, None),
        ],
        ids=str,
    )
    def test_formats(self, client: TestClient, engine: FakeEngine, format_: Any, schema: Any) -> None:
        post(client, "/api/chat", messages=HI, format=format_)
        constraint = engine.requests[0].sampling.constraint
        assert (json.loads(constraint.text) if constraint else None) == schema

    @pytest.mark.parametrize(
        ("path", "body", "said"),
        [
            ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
            ("/api/generate", {"prompt": "a", "images": ["x"]}, "images"),
            ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix"),
            ("/api/generate", {"prompt": "a", "template": "b"}, "template"),
            ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
            ("/api/generate", {"prompt": 5}, "prompt"),
            ("/api/chat", {"messages": [{"content": "a"}]}, "role"),
            ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "function"),
            ("/api/chat", {"messages": HI, "format": "yaml"}, "format"),
            ("/api/chat", {"messages": HI, "options": {"temperature": "hot"}}, "temperature"),
            ("/api/chat", {"messages": HI, "options": {"num_predict": "x"}}, "max_tokens"),
            ("/api/chat", {"messages": HI, "tools": [{"type": "function"}]}, "function"),
        ],
        ids=str,
    )
    def test_what_is_refused_is_named(
        self, client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], said: str
    ) -> None:
        assert said in error_of(client.post(path, json=body), 400)
        assert engine.requests == []


class TestTools:
    def test_calls_have_objects_for_arguments(self) -> None:
        serving = Serving(QWEN)
        serving.says('Well.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
        message = post(serving.client, "/api/chat", messages=HI, tools=TOOLS)["message"]
        (call,) = message["tool_calls"]
        assert call["function"] == {"index": 0, "name": "f", "arguments": {"x": 1}}
        assert message["content"] == "Well."
        parts = lines(serving.client, "/api/chat", messages=HI, tools=TOOLS)
        called = [part["message"]["tool_calls"] for part in parts if "tool_calls" in part["message"]]
        assert [calls[0]["function"] for calls in called] == [call["function"]]
        assert "".join(part["message"]["content"] for part in parts) == "Well."

    def test_they_come_back_as_the_model_wrote_them(self) -> None:
        serving = Serving(QWEN)
        written = '<tool_call>{"arguments":{"x":   1}, "name":"f"}</tool_call>'
        serving.says(written)
        message = post(serving.client, "/api/chat", messages=HI, tools=TOOLS)["message"]
        history = [*HI, message, {"role": "tool", "tool_name": "f", "content": "2"}]
        post(serving.client, "/api/chat", messages=history, tools=TOOLS)
        assert written in serving.prompt
        assert "<tool_response>2</tool_response>" in serving.prompt
        del message["tool_calls"][0]["id"]  # as Ollama's Python client does
        post(serving.client, "/api/chat", messages=history, tools=TOOLS)
        assert '{"name": "f", "arguments": {"x": 1}}' in serving.prompt

    def test_a_broken_call_is_text(self) -> None:
        serving = Serving(QWEN)
        serving.says("<tool_call>{nonsense}</tool_call>")
        parts = lines(serving.client, "/api/chat", messages=HI, tools=TOOLS)
        assert "".join(part["message"]["content"] for part in parts) == "<tool_call>{nonsense}</tool_call>"
        assert not any("tool_calls" in part["message"] for part in parts)


class TestThinking:
    @pytest.mark.parametrize("think", [True, "high"])
    def test_is_told_apart(self, think: Any) -> None:
        serving = Serving(QWEN)
        serving.says("Hm.</think>Yes.")
        said = post(serving.client, "/api/chat", messages=HI, think=think)["message"]
        assert (said["thinking"], said["content"]) == ("Hm.", "Yes.")
        assert serving.prompt.endswith("<think>\n")
        parts = [part["message"] for part in lines(serving.client, "/api/chat", messages=HI, think=think)]
        assert "".join(part.get("thinking", "") for part in parts) == "Hm."
        assert "".join(part["content"] for part in parts) == "Yes."
        assert post(serving.client, "/api/generate", prompt="Hi", think=think)["thinking"] == "Hm."

    def test_can_be_off_and_comes_back_in_the_history(self) -> None:
        serving = Serving(QWEN)
        history = [*HI, {"role": "assistant", "content": "Yes.", "thinking": "Hm."}, *HI]
        post(serving.client, "/api/chat", messages=history, think=False)
        assert "<think>\nHm.\n</think>" in serving.prompt
        assert not serving.prompt.endswith("<think>\n")


class TestErrors:
    def test_before_the_first_token(self, client: TestClient, engine: FakeEngine) -> None:
        engine.refuses = ContextLengthExceeded(101, 100)
        for path, body in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "a"})):
            assert "101" in error_of(client.post(path, json=body), 400)
        engine.refuses = RuntimeError("secret")
        assert "secret" not in error_of(client.post("/api/chat", json={"messages": HI}), 500)

    def test_in_the_middle_of_a_stream(self, client: TestClient, engine: FakeEngine) -> None:
        def script(_: FakeEngine, handle: RequestHandle) -> None:
            handle.push(TextEvent(0, "so far", 1))
            time.sleep(0.2)  # the stream must have begun
            handle.push(DoneEvent(Usage(), EngineFailed("ill")))

        engine.script = script
        first, last = lines(client, "/api/chat", messages=HI)
        assert first["message"]["content"] == "so far"
        assert last == {"error": "ill"}

    def test_a_key_is_needed_where_there_are_keys(self, engine: FakeEngine) -> None:
        client = TestClient(fake_app(engine, api_keys=["anna=first"]))
        for path in ("/api/chat", "/api/generate", "/api/show"):
            error_of(client.post(path, json={"prompt": "a"}), 401)
        for path in ("/api/tags", "/api/version"):
            error_of(client.get(path), 401)
        headers = {"Authorization": "Bearer first"}
        assert client.post("/api/generate", json={"prompt": "a"}, headers=headers).status_code == 200
        assert engine.requests[0].namespace == "4:anna0:"

    def test_what_there_is_not(self, client: TestClient) -> None:
        error_of(client.post("/api/embed", json={}), 404)
        error_of(client.get("/api/chat"), 405)


def test_models(client: TestClient) -> None:
    tags = client.get("/api/tags").json()
    (model,) = ollama.ListResponse.model_validate(tags).models
    assert (model.model, len(model.digest or "")) == ("fake", 64)
    shown = ollama.ShowResponse.model_validate(client.post("/api/show", json={"model": "x"}).json())
    assert shown.modelinfo == {
        "general.architecture": "fake",
        "fake.context_length": 100,
    }
    assert shown.capabilities == ["completion", "tools"]
    version = client.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # older ones are refused by code editors
