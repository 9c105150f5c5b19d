"""Responses, whole and as streams: objects and events as OpenAI's client knows them, and its parameters."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from tests.server.fakes import FakeEngine
from tests.server.live import serving
from tests.server.responses_app import EVENT, RESPONSES, Asked, F
from tests.server.tool_templates import LLAMA3

from onceread.engine.errors import ContextLengthExceeded, EngineFailed, QueueFull
from onceread.engine.request import DoneEvent, FinishEvent, RequestHandle, TextEvent, Usage
from onceread.native.params import Constraint

ONE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
CUT = ONE[: ONE.index(" 1}")]
BROKEN = 'So. <tool_call>{"name": "f", "arguments": {"x": oops}}</tool_call> Done.'
THOUGHT = "<think>\nHm, yes.\n</think>\n\nYes."
CHANGING = {"id", "call_id", "created_at", "completed_at"}


@pytest.fixture
def asked() -> Asked:
    return Asked()


def fixed(value: Any) -> Any:
    """Without what is another one each time."""
    if isinstance(value, dict):
        return {key: fixed(inner) for key, inner in value.items() if key not in CHANGING}
    return [fixed(inner) for inner in value] if isinstance(value, list) else value


def kinds(events: list[Any]) -> list[str]:
    """The types without their beginning, deltas of a row once."""
    found: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not found or found[-1] != kind:
            found.append(kind)
    return found


TEXT = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
THINKS = [
    "output_item.added",
    "content_part.added",
    "reasoning_text.delta",
    "reasoning_text.done",
    "content_part.done",
    "output_item.done",
]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]
REPLIES = [
    # (what the model writes, why it ended, the events, the items)
    ("Hi there.", "stop", TEXT, ["message"]),
    ("Hi there.", "length", TEXT, ["message"]),
    ("", "stop", [kind for kind in TEXT if kind != "output_text.delta"], ["message"]),
    (THOUGHT, "stop", THINKS + TEXT, ["reasoning", "message"]),
    (ONE, "stop", CALL, ["function_call"]),
    (f"Let me.\n{ONE}\n{ONE}", "stop", TEXT + CALL + CALL, ["message", "function_call", "function_call"]),
    (f"{THOUGHT}\n{ONE}", "stop", THINKS + TEXT + CALL, ["reasoning", "message", "function_call"]),
    (CUT, "length", CALL, ["function_call"]),
    (BROKEN, "stop", TEXT, ["message"]),
    (f"{ONE} And then.", "stop", CALL + TEXT, ["function_call", "message"]),
    ("<think>\nHm", "length", THINKS, ["reasoning"]),
]
NAMES = [
    "text",
    "text that is cut",
    "nothing",
    "thinking",
    "a call",
    "text and two calls",
    "all",
    "a call that is cut",
    "a call that is none",
    "text behind a call",
    "thinking that is cut",
]


@pytest.mark.parametrize(("text", "reason", "events", "items"), REPLIES, ids=NAMES)
class TestReplies:
    def test_whole(self, asked: Asked, text: str, reason: str, events: list[str], items: list[str]) -> None:
        asked.says(text, reason)
        response = asked.ask(tools=[F])
        assert [item["type"] for item in response["output"]] == items
        cut = reason == "length"
        assert response["status"] == ("incomplete" if cut else "completed")
        assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
        statuses = [item["status"] for item in response["output"]]
        assert statuses == ["completed"] * (len(items) - 1) + ["incomplete" if cut else "completed"]

    def test_streamed(
        self, asked: Asked, text: str, reason: str, events: list[str], items: list[str]
    ) -> None:
        asked.says(text, reason)
        whole = asked.ask(tools=[F])
        found = asked.stream(tools=[F])
        assert kinds(found) == ["created", "in_progress", *events, whole["status"]]
        assert fixed(found[-1]["response"]) == fixed(whole)
        done = [event for event in found if event["type"] == "response.output_item.done"]
        assert [event["item"] for event in done] == found[-1]["response"]["output"]
        assert [event["output_index"] for event in done] == list(range(len(items)))

    def test_the_client_puts_it_together(
        self, asked: Asked, text: str, reason: str, events: list[str], items: list[str]
    ) -> None:
        asked.says(text, reason)
        state: Any = ResponseStreamState(input_tools=[F], text_format=omit)  # type: ignore[list-item]
        found = asked.stream(tools=[F])
        for event in found:
            state.handle_event(EVENT.validate_json(json.dumps(event)))
        output = found[-1]["response"]["output"]
        snapshot = state._ResponseStreamState__current_snapshot
        for built, item in zip(snapshot.output, output, strict=True):
            if item["type"] == "message":
                assert built.content[0].text == item["content"][0]["text"]
            if item["type"] == "function_call":
                assert built.arguments == item["arguments"]


def test_what_a_call_says(asked: Asked) -> None:
    asked.says(ONE)
    (call,) = asked.ask(tools=[F])["output"]
    assert (call["name"], call["arguments"]) == ("f", '{"x": 1}')
    assert call["id"].startswith("fc_")
    assert call["call_id"].startswith("call_")


def test_a_call_that_is_none_is_text(asked: Asked) -> None:
    asked.says(BROKEN)
    (message,) = asked.ask(tools=[F])["output"]
    assert message["content"][0]["text"] == BROKEN


def test_forced_calls_are_streamed_as_they_come(asked: Asked) -> None:
    asked.says(ONE)
    deltas = [
        event["delta"]
        for event in asked.stream(tools=[F], tool_choice="required")
        if event["type"] == "response.function_call_arguments.delta"
    ]
    assert len(deltas) > 1
    assert "".join(deltas) == '{"x": 1}'


def test_a_forced_call_that_a_stop_string_ends_is_text(asked: Asked) -> None:
    asked.says(CUT)
    (message,) = asked.stream(tools=[F], tool_choice="required", stop=["x"])[-1]["response"]["output"]
    assert message["content"][0]["text"] == CUT


def test_reasoning_is_counted(asked: Asked) -> None:
    asked.says(THOUGHT)
    usage = asked.ask()["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 5  # no more than there are in all
    assert usage["output_tokens"] == 5


def test_usage_adds_up() -> None:
    asked = Asked()
    asked.engine.script = FakeEngine().script
    usage = asked.ask()["usage"]
    details = usage["input_tokens_details"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert details["cached_tokens"] == sum(details["cached_tokens_by_source"].values()) > 0
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]


def test_log_probabilities(asked: Asked) -> None:
    asked.says("Hi there.")
    whole = asked.ask(include=["message.output_text.logprobs"], top_logprobs=2)["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in whole["logprobs"]) == "Hi there."
    assert asked.engine.requests[-1].logprobs == 2
    events = asked.stream(include=["message.output_text.logprobs"])
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for entries in deltas for entry in entries] == ["Hi ", "the", "re."]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == [entry for entries in deltas for entry in entries]


class TestParameters:
    def test_what_reaches_the_engine(self, asked: Asked) -> None:
        asked.ask(
            max_output_tokens=7,
            temperature=0.25,
            top_p=0.5,
            top_k=3,
            seed=5,
            stop=["x"],
            text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        )
        request = asked.engine.requests[-1]
        sampling = request.sampling
        assert (request.max_tokens, request.stop) == (7, ("x",))
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 0.5, 3, 5)
        assert sampling.constraint == Constraint("json_schema", '{"type": "object"}', "response_format")

    def test_what_is_shown_again(self, asked: Asked) -> None:
        said: dict[str, Any] = {
            "instructions": "Be brief.",
            "max_output_tokens": 7,
            "temperature": 0.25,
            "top_p": 0.5,
            "metadata": {"a": "b"},
            "user": "anna",
            "prompt_cache_key": "key",
            "safety_identifier": "id",
            "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "name": "f"},
            "truncation": "auto",
            "top_logprobs": 3,
            "max_tool_calls": 2,
        }
        response = asked.ask(
            **said,
            tools=[F],
            reasoning={"effort": "low"},
            text={"format": {"type": "text"}, "verbosity": "low"},
        )
        assert {name: response[name] for name in said} == said
        assert response["tools"] == [{**F, "strict": None}]
        assert response["reasoning"] == {"effort": "low", "summary": None}
        assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}

    def test_effort_is_the_templates(self) -> None:
        asked = Asked("{{ enable_thinking }}|{{ reasoning_effort }}")
        asked.ask(reasoning={"effort": "high"})
        asked.ask(reasoning={"effort": "none"})
        asked.ask(reasoning={"effort": "none"}, chat_template_kwargs={"enable_thinking": True})
        assert [asked.prompt(i) for i in range(3)] == ["True|high", "False|none", "True|none"]

    def test_the_session_comes_from_the_body_or_the_header(self, asked: Asked) -> None:
        header = {"x-session-id": "from the header"}
        asked.ask(prompt_cache_key="from the body", headers=header)
        asked.ask(headers=header)
        assert [request.session for request in asked.engine.requests] == ["from the body", "from the header"]

    def test_tools_of_other_types_are_skipped_and_named(
        self, asked: Asked, caplog: pytest.LogCaptureFixture
    ) -> None:
        tools = [
            {"type": "web_search"},
            F,
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
            {"type": "local_shell"},
        ]
        body = {"input": "Hi", "tools": tools, "unheard_of": 1}
        answer = asked.client.post(RESPONSES, json=body)
        says = "skipped tools of the types: custom, local_shell, web_search"
        assert answer.headers["x-onceread-warning"] == f"ignored parameters: unheard_of; {says}"
        assert says in caplog.text
        assert [tool["name"] for tool in answer.json()["tools"]] == ["f"]
        assert "apply_patch" not in asked.prompt()

    @pytest.mark.parametrize("mode", ["auto", "required"])
    def test_allowed_tools_leave_the_prompt_as_it_is(self, mode: str) -> None:
        asked = Asked(LLAMA3)
        tools = [F, {**F, "name": "g"}]
        asked.ask(tools=tools)
        asked.says('{"name": "g", "parameters": {"x": 1}}')
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
        response = asked.ask(tools=tools, tool_choice=choice)
        assert asked.prompt(0) == asked.prompt(1)
        assert response["tool_choice"] == choice
        assert response["output"][0]["name"] == "g"
        constraint = asked.engine.requests[1].sampling.constraint
        assert (constraint is not None) == (mode == "required")
        if constraint is not None:
            assert '"g\\"' in constraint.text
            assert '"f\\"' not in constraint.text
        asked.says('{"name": "f", "parameters": {"x": 1}}')
        assert asked.ask(tools=tools, tool_choice=choice)["output"][0]["type"] == "message"

    def test_truncation(self, asked: Asked) -> None:
        asked.engine.limit = 100
        history = [{"role": role, "content": "x" * 40} for role in ("user", "assistant", "user")]
        error_free = asked.ask(history, truncation="auto")
        assert error_free["truncation"] == "auto"
        assert len(asked.engine.requests[0].prompt) < asked.engine.limit
        asked.ask(history, truncation="disabled")
        assert len(asked.engine.requests[1].prompt) > asked.engine.limit  # the engine would refuse it


WRONG: list[tuple[dict[str, Any], str, str]] = [
    # (body, the parameter that the error names, its code)
    ({"background": True}, "background", "unsupported_parameter"),
    ({"background": "no"}, "background", "invalid_type"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"n": 2}, "n", "invalid_value"),
    ({"max_output_tokens": -1}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 5, "max_tokens": 6}, "max_output_tokens", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"include": ["everything"]}, "include[0]", "invalid_value"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"truncation": "on"}, "truncation", "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
    ({"store": "yes"}, "store", "invalid_type"),
    ({"instructions": ["x"]}, "instructions", "invalid_type"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_value"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", "invalid_value"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "invalid_value"),
    (
        {"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}},
        "response_format",
        "invalid_value",
    ),
    ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", "invalid_value"),
    ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": [F, 5]}, "tools[1]", "invalid_type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{**F, "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [F, F]}, "tools", "invalid_value"),
    ({"tools": "all"}, "tools", "invalid_type"),
    ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [F]}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function"}, "tools": [F]}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice", "unsupported_parameter"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
        "tool_choice",
        "invalid_value",
    ),
    ({"chat_template_kwargs": {"messages": []}}, "input", "invalid_value"),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_parameters_are_named(asked: Asked, body: dict[str, Any], param: str, code: str) -> None:
    error = asked.error(**body)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert asked.engine.requests == []


class TestFailures:
    def test_what_is_known_at_once_is_an_error_of_http(self, asked: Asked) -> None:
        asked.engine.refuses = ContextLengthExceeded(101, 100)
        for stream in (False, True):
            error = asked.error(stream=stream)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (101, 100)
        asked.engine.refuses = QueueFull(9, 7)
        assert asked.error(status=503, stream=True)["code"] == "queue_full"

    def test_a_schema_that_the_engine_refuses_has_this_apis_name(self, asked: Asked) -> None:
        from onceread.engine.errors import InvalidRequest

        asked.engine.refuses = InvalidRequest("response_format: too deep", "response_format")
        error = asked.error(text={"format": {"type": "json_object"}})
        assert (error["param"], error["message"]) == ("text.format", "text.format: too deep")

    @pytest.mark.parametrize(
        ("failure", "code"),
        [
            (EngineFailed("ill"), "server_error"),
            (RuntimeError("secret"), "server_error"),
            (ContextLengthExceeded(101, 100), "context_length_exceeded"),
        ],
        ids=["the engine's", "a bug", "too long"],
    )
    @pytest.mark.parametrize("begun", [True, False], ids=["midway", "before the first token"])
    def test_later_the_stream_says_it(self, asked: Asked, begun: bool, failure: Exception, code: str) -> None:
        def script(_: FakeEngine, handle: RequestHandle) -> None:
            if begun:
                handle.push(TextEvent(0, "Hi", 1))
            handle.push(DoneEvent(Usage(), failure))

        asked.engine.script = script
        answer = asked.client.post(RESPONSES, json={"input": "Hi", "stream": True})
        assert answer.status_code == 200
        events = [json.loads(block.split("data: ")[1]) for block in answer.text.split("\n\n")[:-1]]
        assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
        assert events[-1]["type"] == "response.failed"
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", code)
        assert "secret" not in answer.text
        assert asked.client.get(f"{RESPONSES}/{failed['id']}").status_code == 404
        assert asked.error(status=400 if "context" in code else 500)["message"]


def test_a_stream_begins_before_the_prompt_is_read(asked: Asked) -> None:
    read = threading.Event()

    def script(_: FakeEngine, handle: RequestHandle) -> None:
        assert read.wait(20)
        handle.push(TextEvent(0, "Hi", 1))
        handle.push(FinishEvent(0, "stop"))
        handle.push(DoneEvent(Usage()))

    asked.engine.script = script
    with (
        serving(asked.app) as url,
        httpx.stream("POST", url + RESPONSES, json={"input": "Hi", "stream": True}, timeout=20) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("event: "))
        assert [next(lines), next(lines)] == ["event: response.created", "event: response.in_progress"]
        read.set()
        assert list(lines)[-1] == "event: response.completed"


def test_a_client_that_goes_stops_the_reply_and_nothing_is_stored(asked: Asked) -> None:
    cancelled = threading.Event()

    def script(_: FakeEngine, handle: RequestHandle) -> None:
        handle.bind(cancelled.set)

    asked.engine.script = script
    with serving(asked.app) as url, httpx.Client(base_url=url, timeout=20) as client:
        with client.stream("POST", RESPONSES, json={"input": "Hi", "stream": True}) as answer:
            data = next(line for line in answer.iter_lines() if line.startswith("data: "))
        assert cancelled.wait(20)
        response_id = json.loads(data.removeprefix("data: "))["response"]["id"]
        assert client.get(f"{RESPONSES}/{response_id}").status_code == 404
