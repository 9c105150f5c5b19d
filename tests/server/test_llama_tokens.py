"""``/tokenize``, ``/detokenize``, ``/apply-template``, ``/props``, ``/slots``."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app
from tests.server.test_tools import Serving
from tests.server.tool_templates import QWEN

from onceread.engine.config import EngineConfig, EngineStats

END = "<|im_end|>"
MESSAGES: Any = [{"role": "user", "content": f"Hi{END}"}]


def at_a_time(n: int, engine: FakeEngine | None = None) -> FakeEngine:
    """An engine that runs so many requests at a time."""
    engine = engine or FakeEngine()
    engine.config = EngineConfig(parallel=n)
    return engine


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


class TestTokenize:
    @pytest.mark.parametrize(
        ("body", "tokens"),
        [
            ({"content": "ab"}, [97, 98]),
            ({"content": f"a{END}"}, [97, 258]),
            ({"content": f"a{END}", "parse_special": False}, [97, *END.encode()]),
            ({"content": "a", "add_special": True}, [256, 97]),
            ({"content": "a", "add_special": True, "parse_special": False}, [256, 97]),
            ({"content": "<|endoftext|>a", "add_special": True}, [256, 97]),
            ({"content": "", "add_special": True}, [256]),
            ({"content": ""}, []),
            ({"content": []}, []),
            ({"content": ["a", 258, "b"], "add_special": True}, [256, 97, 258, 98]),
            ({"content": [258, "b"], "add_special": True}, [258, 98]),
            ({"content": "a", "with_pieces": True}, [{"id": 97, "piece": "a"}]),
            (
                {"content": f"é{END}", "with_pieces": True},
                [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}, {"id": 258, "piece": END}],
            ),
        ],
        ids=str,
    )
    def test_texts(self, client: TestClient, body: dict[str, Any], tokens: list[Any]) -> None:
        client.app.state.onceread.serving().model.vocab.add_bos = True  # type: ignore[attr-defined]
        assert post(client, "/tokenize", **body) == {"tokens": tokens}

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "content"),
            ({"content": 5}, "content"),
            ({"content": [259]}, "content"),
            ({"content": [True]}, "content"),
            ({"content": "a", "add_special": "yes"}, "add_special"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named(self, client: TestClient, body: dict[str, Any], param: str) -> None:
        response = client.post("/tokenize", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    def test_and_back(self, client: TestClient) -> None:
        tokens = post(client, "/tokenize", content=f"aé{END}")["tokens"]
        assert post(client, "/detokenize", tokens=tokens) == {"content": f"aé{END}"}
        assert post(client, "/detokenize", tokens=[]) == {"content": ""}
        assert post(client, "/detokenize", tokens=[97, 195]) == {"content": "a\ufffd"}

    @pytest.mark.parametrize("tokens", [None, "a", [259], [-1], [True], ["a"]], ids=str)
    def test_what_are_no_tokens(self, client: TestClient, tokens: Any) -> None:
        response = client.post("/detokenize", json={"tokens": tokens})
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


class TestTemplate:
    def test_a_conversation(self, client: TestClient) -> None:
        expected = f"<|im_start|>user\nHi{END}{END}\n"
        said = post(client, "/apply-template", messages=MESSAGES)["prompt"]
        assert said.endswith(f"{expected}<|im_start|>assistant\n")
        said = post(client, "/apply-template", messages=MESSAGES, add_generation_prompt=False)["prompt"]
        assert said.endswith(expected)

    def test_tools_and_variables(self) -> None:
        serving = Serving(QWEN)
        tools = [{"type": "function", "function": {"name": "look"}}]
        body = {"messages": MESSAGES, "tools": tools, "chat_template_kwargs": {"enable_thinking": True}}
        said = post(serving.client, "/apply-template", **body)["prompt"]
        assert '"name": "look"' in said
        assert said.endswith(f"Hi{END}{END}\n<|im_start|>assistant\n<think>\n")
        assert post(serving.client, "/v1/chat/completions", **body)
        assert serving.prompt == said

    @pytest.mark.parametrize(
        "more",
        [
            {"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}]},
            {"messages": MESSAGES, "reasoning_effort": "low"},
            {"messages": MESSAGES, "reasoning_effort": "none"},
        ],
        ids=["a final message of the assistant", "effort", "no effort"],
    )
    def test_it_is_the_prompt_of_a_chat(self, more: dict[str, Any]) -> None:
        serving = Serving(QWEN)
        said = post(serving.client, "/apply-template", **more)["prompt"]
        post(serving.client, "/v1/chat/completions", **more)
        assert serving.prompt == said

    def test_a_wrong_conversation(self, client: TestClient) -> None:
        response = client.post("/apply-template", json={"messages": []})
        assert response.json()["error"]["type"] == "invalid_request_error"


class TestProps:
    def test_what_clients_ask_for(self) -> None:
        app = fake_app(at_a_time(3), model_name="mine")
        props = TestClient(app).get("/props").json()
        settings = props["default_generation_settings"]
        assert (settings["n_ctx"], props["total_slots"]) == (100, 3)
        assert (settings["params"]["temperature"], settings["params"]["n_predict"]) == (0.8, -1)
        assert props["model_path"] == props["model_alias"] == "mine"
        assert props["modalities"] == {"vision": False, "audio": False}
        assert "message" in props["chat_template"]
        assert (props["bos_token"], props["eos_token"]) == ("<|endoftext|>", END)
        assert props["build_info"].startswith("onceread-")

    def test_they_are_not_to_be_changed(self, client: TestClient) -> None:
        response = client.post("/props", json={})
        assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


class TestSlots:
    def test_as_many_are_busy_as_run(self) -> None:
        class Busy(FakeEngine):
            def stats(self) -> EngineStats:
                return EngineStats(running=2)

        client = TestClient(fake_app(at_a_time(3, Busy())))
        slots = client.get("/slots").json()
        assert [slot["is_processing"] for slot in slots] == [True, True, False]
        assert [(slot["id"], slot["n_ctx"]) for slot in slots] == [(0, 100), (1, 100), (2, 100)]
        assert set(slots[0]) == {"id", "id_task", "n_ctx", "speculative", "is_processing"}
        assert client.get("/slots?fail_on_no_slot=1").status_code == 200
        full = TestClient(fake_app(at_a_time(2, Busy()))).get("/slots?fail_on_no_slot=1")
        assert (full.status_code, full.json()["error"]["type"]) == (503, "unavailable_error")

    def test_where_replies_run_one_by_one_there_is_one(self) -> None:
        """Exact mode allows no more, whatever --parallel says."""
        app = fake_app(at_a_time(1), parallel=4)
        assert len(TestClient(app).get("/slots").json()) == 1

    @pytest.mark.parametrize("action", ["save", "restore", "erase"])
    def test_they_can_not_be_told_anything(self, client: TestClient, action: str) -> None:
        response = client.post(f"/slots/0?action={action}", json={"filename": "x"})
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (501, "not_supported_error")
        assert "/cache/pin" in error["message"]

    @pytest.mark.parametrize("path", ["/slots/0", "/slots/0?action=x", "/slots/a?action=save"])
    def test_other_actions(self, client: TestClient, path: str) -> None:
        response = client.post(path)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_there_are_no_adapters(client: TestClient) -> None:
    assert client.get("/lora-adapters").json() == []


def test_paths_that_only_look_alike_are_openais(client: TestClient) -> None:
    for path in ("/nowhere", "/v1/completionx"):
        assert client.get(path).json()["error"]["code"] == "unknown_url"
