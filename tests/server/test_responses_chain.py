"""Conversations that the server remembers: what is sent, what is stored, and prompts that repeat what was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter
from tests.server.responses_app import RESPONSES, Asked, F
from tests.server.tool_templates import CONTROL, LLAMA3, MISTRAL, NAMED, QWEN

from onceread.chat.builtin import CHATML

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def asked() -> Asked:
    return Asked()


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


CALLED = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
OPEN = "<|im_start|>assistant\n"
ITEMS: list[tuple[Any, str]] = [
    # (input, the prompt)
    ("Hi", said("user", "Hi")),
    (
        [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            }
        ],
        said("user", "a\nb"),
    ),
    (
        [{"type": "message", "role": "developer", "content": "D"}, {"role": "system", "content": "S"}, USER],
        said("system", "D") + said("system", "S") + said("user", "Hi"),
    ),
    (
        [USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}],
        said("user", "Hi") + said("assistant", "A") + said("assistant", "B"),
    ),
    (
        [
            USER,
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "A"}, {"type": "refusal", "refusal": "B"}],
            },
        ],
        said("user", "Hi") + said("assistant", "AB"),
    ),
    (
        [USER, CALL, {**CALL, "call_id": "c2"}, RESULT, {**RESULT, "call_id": "c2"}],
        said("user", "Hi")
        + said("assistant", f"{CALLED}\n{CALLED}")
        + said("user", "<tool_response>42</tool_response>") * 2,
    ),
    (
        [USER, {"role": "assistant", "content": "Let me."}, CALL, RESULT, CALL, RESULT],
        said("user", "Hi")
        + said("assistant", f"Let me.\n{CALLED}")
        + said("user", "<tool_response>42</tool_response>")
        + said("assistant", CALLED)
        + said("user", "<tool_response>42</tool_response>"),
    ),
    (
        [
            USER,
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "T"}],
            },
            {"role": "assistant", "content": "A"},
        ],
        said("user", "Hi") + said("assistant", "<think>\nT\n</think>\n\nA"),
    ),
    (
        [
            USER,
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "T"}],
                "encrypted_content": "x",
            },
            CALL,
            RESULT,
        ],
        said("user", "Hi")
        + said("assistant", f"<think>\nT\n</think>\n\n{CALLED}")
        + said("user", "<tool_response>42</tool_response>"),
    ),
    (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "T"}]}, USER],
        said("user", "Hi"),
    ),
    (
        [
            USER,
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 'a "b"'},
            {
                "type": "custom_tool_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "ok"}],
            },
        ],
        said("user", "Hi")
        + said("assistant", CALLED.replace('{"x": 1}', '{"input": "a \\"b\\""}'))
        + said("user", "<tool_response>ok</tool_response>"),
    ),
]
ITEM_NAMES = [
    "a string",
    "parts",
    "developer and system",
    "assistants",
    "parts of an answer",
    "parallel calls",
    "text and calls",
    "reasoning",
    "a summary",
    "reasoning of nothing",
    "custom tools",
]


@pytest.mark.parametrize(("items", "prompt"), ITEMS, ids=ITEM_NAMES)
def test_items_become_messages(asked: Asked, items: Any, prompt: str) -> None:
    response = asked.ask(items)
    assert asked.prompt() == prompt + OPEN
    # Stored and gone on from, they are the same messages; listed, they are what the client knows.
    asked.ask("More", previous_response_id=response["id"])
    assert asked.prompt().startswith(prompt + OPEN + "Hi there.")
    page = asked.client.get(f"{RESPONSES}/{response['id']}/input_items?order=asc").json()
    for item in page["data"]:
        TypeAdapter(ResponseItem).validate_json(json.dumps(item), strict=True)
    asked.ask(page["data"])
    assert asked.prompt() == prompt + OPEN


WRONG: list[tuple[Any, str, str]] = [
    (None, "input", "missing_required_parameter"),
    ("", "input", "invalid_value"),
    ([], "input", "invalid_value"),
    (5, "input", "invalid_type"),
    (["Hi"], "input[0]", "invalid_type"),
    ([USER, {"role": "tool", "content": "x"}], "input[1].role", "invalid_value"),
    ([{"role": "user"}], "input[0].content", "missing_required_parameter"),
    ([{"content": "x"}], "input[0].role", "missing_required_parameter"),
    ([{"role": "user", "content": [{"text": "x"}]}], "input[0].content", "invalid_type"),
    ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}], "input[0].content", "invalid_type"),
    (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        "input[0].content",
        "unsupported_content",
    ),
    (
        [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}],
        "input[0].content",
        "unsupported_content",
    ),
    (
        [{**RESULT, "output": [{"type": "input_image", "image_url": "x"}]}],
        "input[0].output",
        "unsupported_content",
    ),
    (
        [{"type": "function_call", "name": "f", "arguments": "{}"}],
        "input[0].call_id",
        "missing_required_parameter",
    ),
    ([{"type": "function_call_output", "call_id": "c", "output": None}], "input[0].output", "invalid_type"),
    ([{"type": "local_shell_call", "id": "x"}], "input[0]", "unsupported_content"),
    ([{"type": "web_search_call", "id": "x"}], "input[0]", "unsupported_content"),
    ([{"type": 5}], "input[0].type", "invalid_type"),
    ([{"type": "reasoning", "summary": "x"}], "input[0].summary", "invalid_type"),
]


@pytest.mark.parametrize(("items", "param", "code"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_items_are_named(asked: Asked, items: Any, param: str, code: str) -> None:
    error = asked.error(items)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    if code == "unsupported_content":
        named = items[0].get("type", "input_")
        assert named in error["message"] or "input_" in error["message"]
    assert asked.engine.requests == []


ODD = [
    # (template, what the model writes: not as the template would)
    (QWEN, 'So.\n\n<tool_call>{"arguments":{"x":1},"name":"f"}\n</tool_call>'),
    (QWEN, f'<tool_call>\n{{"name":"f", "arguments":{{"x":1}}}}</tool_call>  {CALLED}'),
    (CHATML, 'So. <tool_call>{"arguments":{"x":1},"name":"f"} </tool_call>'),
    (LLAMA3, '{"type": "function", "name":"f","parameters":{"x":1}}'),
    (MISTRAL, '[TOOL_CALLS] [{"arguments":{"x":1},"name":"f"}]'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x":1}, "id": "AbCdEf123"}]'),
    (NAMED, '[TOOL_CALLS]f[ARGS]{"x":1}'),
    (QWEN, "<think>\nHm.\n</think>\n\nYes."),
    (QWEN, "Yes.  \n\nNo."),
]
ODD_NAMES = [
    "qwen",
    "qwen, two calls",
    "generic",
    "llama3",
    "mistral",
    "mistral with ids",
    "mistral, named",
    "thinking",
    "text",
]


@pytest.mark.parametrize(("template", "written"), ODD, ids=ODD_NAMES)
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_only_the_newest_is_sent_and_the_prompt_repeats_what_was_read(
    template: str, written: str, restarted: bool, tmp_path: Path
) -> None:
    asked = Asked(template, tmp_path)
    asked.says(written)
    first = asked.ask(tools=[F], instructions=None if template in (MISTRAL, NAMED) else "Be brief.")
    begun = asked.prompt()
    if restarted:
        asked.store.close()
        asked = Asked(template, tmp_path)
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "42"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    asked.says("Good.")
    second = asked.ask(
        results or "More",
        previous_response_id=first["id"],
        tools=[F],
        instructions=first["instructions"],
    )
    assert asked.prompt().startswith(begun + written)
    third = asked.prompt()
    asked.ask("And?", previous_response_id=second["id"], tools=[F], instructions=first["instructions"])
    assert asked.prompt().startswith(third + "Good.")


def test_another_models_words_for_a_call_are_not_used(tmp_path: Path) -> None:
    asked = Asked(LLAMA3, tmp_path)
    asked.says('{"name":"f","parameters":{"x":1}}')
    first = asked.ask(tools=[F])
    call_id = first["output"][0]["call_id"]
    other = Asked(QWEN, tmp_path)
    other.ask([{**RESULT, "call_id": call_id}], previous_response_id=first["id"], tools=[F])
    assert CALLED in other.prompt()


def test_instructions_are_not_carried_over(asked: Asked) -> None:
    first = asked.ask(instructions="Be brief.")
    assert asked.prompt().startswith(said("system", "Be brief."))
    asked.ask(previous_response_id=first["id"])
    assert "Be brief." not in asked.prompt()


def test_conversations_branch(asked: Asked) -> None:
    first = asked.ask("One")
    asked.says("Left.")
    left = asked.ask("Two", previous_response_id=first["id"])
    right = asked.ask("Three", previous_response_id=first["id"])
    asked.ask("Four", previous_response_id=left["id"])
    assert "Three" not in asked.prompt()
    asked.ask("Five", previous_response_id=right["id"])
    assert "Two" not in asked.prompt()


class TestStored:
    def test_what_is_read_back_is_what_was_answered(self, asked: Asked) -> None:
        whole = asked.ask()
        assert asked.client.get(f"{RESPONSES}/{whole['id']}").json() == whole
        streamed = asked.stream()[-1]["response"]
        assert asked.client.get(f"{RESPONSES}/{streamed['id']}").json() == streamed

    def test_not_if_the_client_does_not_want_it(self, asked: Asked) -> None:
        response = asked.ask(store=False)
        assert response["store"] is False
        assert asked.client.get(f"{RESPONSES}/{response['id']}").status_code == 404
        error = asked.error(previous_response_id=response["id"])
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
        assert response["id"] in error["message"]

    def test_unknown_ids(self, asked: Asked) -> None:
        path = f"{RESPONSES}/resp_0"
        for answer in (
            asked.client.get(path),
            asked.client.delete(path),
            asked.client.get(path + "/input_items"),
            asked.client.post(path + "/cancel"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")

    def test_a_deleted_one_ends_what_came_after_it(self, asked: Asked) -> None:
        first = asked.ask("One")
        second = asked.ask("Two", previous_response_id=first["id"])
        answer = asked.client.delete(f"{RESPONSES}/{first['id']}")
        assert answer.json() == {"id": first["id"], "object": "response", "deleted": True}
        assert asked.client.get(f"{RESPONSES}/{first['id']}").status_code == 404
        assert asked.client.get(f"{RESPONSES}/{second['id']}").status_code == 200
        error = asked.error(previous_response_id=second["id"])
        assert error["code"] == "previous_response_not_found"
        assert first["id"] in error["message"]

    def test_streams_are_not_kept(self, asked: Asked) -> None:
        response = asked.ask()
        answer = asked.client.get(f"{RESPONSES}/{response['id']}?stream=true")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")

    def test_nothing_can_be_cancelled(self, asked: Asked) -> None:
        answer = asked.client.post(f"{RESPONSES}/{asked.ask()['id']}/cancel")
        assert answer.status_code == 400
        assert "background" in answer.json()["error"]["message"]

    def test_pages_of_items(self, asked: Asked) -> None:
        items = [{"role": "user", "content": str(i)} for i in range(5)]
        path = f"{RESPONSES}/{asked.ask(items)['id']}/input_items"

        def page(query: str) -> tuple[list[str], Any]:
            found = asked.client.get(f"{path}?{query}").json()
            return [item["content"][0]["text"] for item in found["data"]], found

        assert page("")[0] == ["4", "3", "2", "1", "0"]
        texts, first = page("order=asc&limit=2")
        assert (texts, first["has_more"]) == (["0", "1"], True)
        assert (first["first_id"], first["last_id"]) == (first["data"][0]["id"], first["data"][1]["id"])
        texts, last = page(f"order=asc&limit=3&after={first['last_id']}")
        assert (texts, last["has_more"]) == (["2", "3", "4"], False)
        assert page(f"order=asc&after={last['last_id']}")[1]["data"] == []
        assert asked.client.get(f"{path}?after=nothing").status_code == 404
        assert asked.client.get(f"{path}?limit=0").json()["error"]["param"] == "limit"

    def test_references_to_items(self, asked: Asked) -> None:
        asked.says('<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>')
        (call,) = asked.ask(tools=[F])["output"]
        asked.ask(
            [USER, {"type": "item_reference", "id": call["id"]}, {**RESULT, "call_id": call["call_id"]}]
        )
        assert '<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>' in asked.prompt()
        error = asked.error([{"id": "msg_0"}], status=404)
        assert (error["code"], error["param"]) == ("item_not_found", "input[0].id")
        assert "msg_0" in error["message"]

    def test_where_it_can_not_be_stored_the_answer_comes_all_the_same(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "responses").write_text("in the way")
        asked = Asked(directory=tmp_path)
        answer = asked.client.post(RESPONSES, json={"input": "Hi"})
        assert answer.status_code == 200
        assert answer.json()["output"][0]["content"][0]["text"] == "Hi there."
        assert answer.json()["store"] is False
        assert answer.headers["x-onceread-warning"] == "the response could not be stored"
        assert asked.stream()[-1]["response"]["store"] is False
        assert caplog.text.count("is not stored") == 2
        assert asked.client.get(f"{RESPONSES}/resp_0").json()["error"]["code"] == "disk_failed"

    def test_it_is_stored_before_the_last_event(self, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
        # The stream's last event is made from what put() was given, and after it returned.
        order: list[str] = []
        put = asked.store.put

        def noted(namespace: str, turn: Any, response: Any) -> None:
            put(namespace, turn, response)
            order.append("stored")

        monkeypatch.setattr(asked.store, "put", noted)
        events = asked.stream()
        assert order == ["stored"]
        assert asked.store.response(SPACE, events[-1]["response"]["id"]) == events[-1]["response"]


SPACE = "7:default0:"


class TestNamespaces:
    def test_others_see_nothing(self) -> None:
        asked = Asked(api_keys=["anna=sk-a", "ben=sk-b"])
        anna, ben = ({"authorization": f"Bearer sk-{name}"} for name in "ab")
        response = asked.ask(headers=anna)
        path = f"{RESPONSES}/{response['id']}"
        assert asked.client.get(path, headers=anna).status_code == 200
        assert asked.client.get(path, headers=ben).status_code == 404
        assert asked.client.get(path + "/input_items", headers=ben).status_code == 404
        assert asked.client.delete(path, headers=ben).status_code == 404
        for body in (
            {"input": "Hi", "previous_response_id": response["id"]},
            {"input": [{"type": "item_reference", "id": response["output"][0]["id"]}]},
        ):
            assert asked.client.post(RESPONSES, json=body, headers=ben).status_code in (400, 404)
            assert asked.client.post(RESPONSES, json=body, headers=anna).status_code == 200
        assert asked.client.get(path).status_code == 401

    def test_a_salt_is_one(self, asked: Asked) -> None:
        response = asked.ask(cache_salt="s")
        path = f"{RESPONSES}/{response['id']}"
        assert asked.client.get(path).status_code == 404
        assert asked.client.get(path + "?cache_salt=s").status_code == 200
        asked.error(previous_response_id=response["id"])
        asked.ask(previous_response_id=response["id"], cache_salt="s")

    def test_clearing_the_cache_forgets_them(self, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asked.engine, "clear", lambda namespaces: 0, raising=False)
        mine, salted = asked.ask()["id"], asked.ask(cache_salt="s")["id"]
        freed = asked.client.post("/cache/clear", json={}).json()["freed_bytes"]
        assert freed > 0
        assert asked.client.get(f"{RESPONSES}/{mine}").status_code == 404
        assert asked.client.get(f"{RESPONSES}/{salted}?cache_salt=s").status_code == 200
        asked.client.post("/cache/clear", json={"all": True})
        assert asked.client.get(f"{RESPONSES}/{salted}?cache_salt=s").status_code == 404


class TestInputTokens:
    def count(self, asked: Asked, **body: Any) -> int:
        answer = asked.client.post(f"{RESPONSES}/input_tokens", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == "response.input_tokens"
        count: int = answer.json()["input_tokens"]
        return count

    def test_they_are_the_prompts(self, asked: Asked) -> None:
        body = {"input": "Hi", "instructions": "Be brief.", "tools": [F]}
        counted = self.count(asked, **body)
        assert asked.engine.requests == []
        first = asked.client.post(RESPONSES, json=body).json()
        assert counted == first["usage"]["input_tokens"] == len(asked.engine.requests[-1].prompt)
        more = {**body, "input": "More", "previous_response_id": first["id"]}
        assert (
            self.count(asked, **more)
            == asked.client.post(RESPONSES, json=more).json()["usage"]["input_tokens"]
        )

    def test_of_what_is_too_long(self, asked: Asked) -> None:
        long = {"input": "x" * 20_000}
        assert self.count(asked, **long) > asked.engine.limit
        assert self.count(asked, **long, truncation="auto") > asked.engine.limit

    def test_errors(self, asked: Asked) -> None:
        answer = asked.client.post(f"{RESPONSES}/input_tokens", json={})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_control_tokens_in_items_stay_text(asked: Asked) -> None:
    asked.ask(
        [
            {**USER, "content": "<|im_end|>"},
            {**CALL, "arguments": '{"x": "<|im_end|>"}'},
            {**RESULT, "output": "<|im_end|>"},
        ]
    )
    assert asked.engine.requests[-1].prompt.count(CONTROL["<|im_end|>"]) == 3
