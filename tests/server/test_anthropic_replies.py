"""Replies in Anthropic's shape: blocks, reasons, usage, and the events of streams, as the client's types have them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.anthropic_app import MESSAGES, USER, App, F, G, Says, events_of, told
from tests.server.fakes import FakeEngine, until_cancelled
from tests.server.live import serving
from tests.server.tool_templates import QWEN

from onceread.engine.errors import EngineFailed
from onceread.engine.request import CachedBySource, DoneEvent, FinishEvent, RequestHandle, TextEvent, Usage
from onceread.server import anthropic_messages
from onceread.server.anthropic_breakpoints import usage_body
from onceread.server.anthropic_schemas import MessageBody

KEEP = {"cache_control": {"type": "ephemeral"}}
ONE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TWO = f'Let me.\n{ONE}\n<tool_call>{{"name": "g"}}</tool_call>\n'
THOUGHT = "<think>\nHm.\n</think>\n\nYes."


@pytest.fixture
def app() -> App:
    return App(QWEN)


def test_a_message(app: App) -> None:
    message = app.ask()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "héllo", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(app.engine.requests[0].prompt),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 7,
        },
    }


@pytest.mark.parametrize("said", ["héllo", TWO, THOUGHT, ""], ids=["text", "calls", "thoughts", "nothing"])
def test_messages_are_as_documented(app: App, said: str) -> None:
    app.says.text = said
    message = app.ask(tools=[F, G])
    assert MessageBody.model_validate(message, strict=True).model_dump(exclude_unset=True) == message


def test_a_stream_in_order(app: App) -> None:
    events = app.stream()
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    assert events[1]["content_block"] == {"type": "text", "text": "", "citations": None}
    assert [event["delta"]["text"] for event in events[2:4]] == ["hél", "lo"]
    assert events[5]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[5]["usage"] == app.ask()["usage"]


def test_calls(app: App) -> None:
    app.says.text = TWO
    message = app.ask(tools=[F, G])
    said, *calls = message["content"]
    assert said["text"] == "Let me."
    ids = {call.pop("id") for call in calls}
    assert len(ids) == 2
    assert calls == [
        {"type": "tool_use", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "name": "g", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert told(app, tools=[F, G]) == [
        "message_start",
        "content_block_start text",
        "content_block_delta Let",
        "content_block_delta  me",
        "content_block_delta .",
        "content_block_stop",
        "content_block_start tool_use",
        'content_block_delta {"x": 1}',
        "content_block_stop",
        "content_block_start tool_use",
        "content_block_delta {}",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_blocks_of_a_stream_are_numbered(app: App) -> None:
    app.says.text = TWO
    blocks = [event for event in app.stream(tools=[F, G]) if "block" in event["type"]]
    assert [e["index"] for e in blocks if e["type"] == "content_block_start"] == [0, 1, 2]
    assert [e["index"] for e in blocks] == sorted(e["index"] for e in blocks)
    assert [e["content_block"].get("input") for e in blocks if "content_block" in e] == [None, {}, {}]


def test_what_turns_out_to_be_no_call_is_text_and_no_block_was_begun(app: App) -> None:
    app.says.text = broken = '<tool_call>\n{"name": "f", "arguments": {"x": 1,}}\n</tool_call>'
    message = app.ask(tools=[F])
    assert [block["type"] for block in message["content"]] == ["text"]
    assert (message["content"][0]["text"], message["stop_reason"]) == (broken, "end_turn")
    starts = [e for e in app.stream(tools=[F]) if e["type"] == "content_block_start"]
    assert [e["content_block"]["type"] for e in starts] == ["text"]


def test_a_call_cut_by_the_limit(app: App) -> None:
    app.says = Says('<tool_call>{"name": "f", "arguments": {"x": 1, "y": "ab', "length")
    message = app.ask(tools=[F])
    (call,) = message["content"]
    assert (call["name"], call["input"], message["stop_reason"]) == ("f", {}, "max_tokens")
    assert told(app, tools=[F])[1:4] == [
        "content_block_start tool_use",
        'content_block_delta {"x": 1, "y": "ab',
        "content_block_stop",
    ]


def test_line_breaks_that_a_model_leaves_in_arguments_are_json_for_the_client(app: App) -> None:
    app.says.text = '<tool_call>{"name": "f", "arguments": "{\\"y\\": \\"a\nb\\"}"}</tool_call>'
    (call,) = app.ask(tools=[F])["content"]
    assert call["input"] == {"y": "a\nb"}
    assert 'content_block_delta {"y": "a\\nb"}' in told(app, tools=[F])


def test_thoughts(app: App) -> None:
    app.says.text = THOUGHT
    thought, said = app.ask()["content"]
    assert (thought["type"], thought["thinking"], said["text"]) == ("thinking", "Hm.", "Yes.")
    assert thought["signature"]
    assert told(app)[1:8] == [
        "content_block_start thinking",
        "content_block_delta H",
        "content_block_delta m.",
        f"content_block_delta {thought['signature']}",
        "content_block_stop",
        "content_block_start text",
        "content_block_delta Ye",
    ]


def test_thoughts_can_come_without_their_text(app: App) -> None:
    app.says.text = THOUGHT
    thinking = {"type": "adaptive", "display": "omitted"}
    app.says.text = "Hm.\n</think>\n\nYes."
    thought, said = app.ask(thinking=thinking)["content"]
    assert (thought["thinking"], said["text"]) == ("", "Yes.")
    assert not any("Hm" in line for line in told(app, thinking=thinking))


@pytest.mark.parametrize(
    ("says", "reason", "stop"),
    [
        (Says(), "end_turn", None),
        (Says(reason="length"), "max_tokens", None),
        (Says(stop_string="###"), "stop_sequence", "###"),
        (Says(text=""), "end_turn", None),
    ],
    ids=["end", "limit", "stop sequence", "nothing said"],
)
def test_why_a_reply_stops(app: App, says: Says, reason: str, stop: str | None) -> None:
    app.says = says
    message = app.ask(stop_sequences=["###"])
    delta = app.stream(stop_sequences=["###"])[-2]["delta"]
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)
    assert delta == {"stop_reason": reason, "stop_sequence": stop}
    assert (message["content"] == []) == (not says.text)


@pytest.mark.parametrize(
    ("cached", "breakpoints", "usage"),
    [
        (0, (), (100, 0, 0)),
        (60, (), (40, 0, 60)),
        (0, (70,), (30, 70, 0)),
        (60, (20, 70), (30, 10, 60)),
        (80, (70,), (20, 0, 80)),
        (99, (100,), (0, 1, 99)),
    ],
    ids=["nothing known", "some", "a breakpoint", "some before it", "all before it", "all but one"],
)
def test_what_a_prompt_costs(cached: int, breakpoints: tuple[int, ...], usage: tuple[int, int, int]) -> None:
    happened = Usage(100, 100 - cached, CachedBySource(disk=cached), 5)
    body = usage_body(happened, breakpoints, 100)
    said = (body.input_tokens, body.cache_creation_input_tokens, body.cache_read_input_tokens)
    assert said == usage
    assert sum(said) == 100
    # The prompt that was read spells the same text in two more tokens, before the breakpoints.
    longer = usage_body(Usage(102, 102 - cached, CachedBySource(disk=cached)), breakpoints, 100)
    assert longer.input_tokens + longer.cache_creation_input_tokens + cached == 102


def test_usage_counts_what_is_created_up_to_the_last_breakpoint(app: App) -> None:
    app.says.cached = 10
    system = [{"type": "text", "text": "Be brief.", **KEEP}]
    usage = app.ask(system=system)["usage"]
    n, (at,) = len(app.engine.requests[0].prompt), app.engine.requests[0].keep_at
    assert usage["cache_read_input_tokens"] == 10
    assert usage["cache_creation_input_tokens"] == at - 10
    assert usage["input_tokens"] == n - at
    first, last = (e for e in app.stream(system=system) if e["type"] in ("message_start", "message_delta"))
    assert {**first["message"]["usage"], "output_tokens": 7} == last["usage"] == usage


class Slow:
    """An engine that reads until it is told to go on."""

    def __init__(self, app: App) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        app.engine.script = self._script
        self.error: Exception | None = None

    def _script(self, _: FakeEngine, handle: RequestHandle) -> None:
        self.began.set()
        self.go_on.wait(10)
        n = len(handle.request.prompt)
        if self.error is None:
            handle.push(TextEvent(0, "So.", 1))
            handle.push(FinishEvent(0, "stop"))
        handle.push(DoneEvent(Usage(n, 1, CachedBySource(disk=n - 1), 3), self.error))


@pytest.fixture
def slow(app: App, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(anthropic_messages, "BEGINS_WITHIN", 0.01)
    monkeypatch.setattr(anthropic_messages, "PING_EVERY", 0.02)
    return Slow(app)


@pytest.fixture
def url(app: App) -> Iterator[str]:
    with serving(app.app) as url:
        yield url


def read_slowly(url: str, slow: Slow, pings: int) -> list[Any]:
    """The events of a stream whose prompt is read until so many pings have come."""
    body = {"max_tokens": 5, "messages": [USER], "stream": True}
    got = ""
    with httpx.stream("POST", url + MESSAGES, json=body, timeout=10) as response:
        assert response.status_code == 200
        for text in response.iter_text():
            got += text
            if got.count("event: ping") >= pings:
                slow.go_on.set()
    return events_of(got)


def test_pings_while_the_prompt_is_read(url: str, app: App, slow: Slow) -> None:
    start, *events = read_slowly(url, slow, 3)
    assert [event["type"] for event in events[:3]] == ["ping"] * 3
    n = len(app.engine.requests[0].prompt)
    # Nobody knows yet what is cached; the end has the true figures.
    assert start["message"]["usage"] == {
        "input_tokens": n,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert events[-2]["usage"] == {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n - 1,
        "output_tokens": 3,
    }


def test_what_fails_once_a_stream_has_begun_is_an_event(url: str, slow: Slow) -> None:
    slow.error = EngineFailed("no more")
    *_, last = read_slowly(url, slow, 1)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "no more" in last["error"]["message"]


def test_pings_while_a_call_is_written(url: str, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic_messages, "PING_EVERY", 0.02)
    pinged = threading.Event()

    def script(_: FakeEngine, handle: RequestHandle) -> None:
        handle.push(TextEvent(0, '<tool_call>{"name": "f", "arguments": {"y": "', 1))
        deadline = time.monotonic() + 10
        while not pinged.wait(0.005) and time.monotonic() < deadline:  # faster than pings would come
            handle.push(TextEvent(0, "x", 1))
        handle.push(TextEvent(0, '"}}</tool_call>', 1))
        handle.push(FinishEvent(0, "stop"))
        handle.push(DoneEvent(Usage(1, 1)))

    app.engine.script = script
    body = {"max_tokens": 5, "messages": [USER], "stream": True, "tools": [F]}
    got = ""
    with httpx.stream("POST", url + MESSAGES, json=body, timeout=10) as response:
        for text in response.iter_text():
            got += text
            if "event: ping" in got:
                pinged.set()
    assert pinged.is_set()
    assert [e["content_block"]["name"] for e in events_of(got) if e["type"] == "content_block_start"] == ["f"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_who_goes_away_while_the_prompt_is_read_stops_costing(
    url: str, app: App, slow: Slow, stream: bool
) -> None:
    """A stream has begun by then, and sends pings."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    body = json.dumps({"max_tokens": 5, "messages": [USER], "stream": stream})
    connection.request("POST", MESSAGES, body, {"content-type": "application/json"})
    assert slow.began.wait(10)
    if stream:
        response = connection.getresponse()
        while b"ping" not in response.readline():
            pass
        response.close()
    connection.close()
    assert stopped(app)
    slow.go_on.set()


def test_who_goes_away_while_the_reply_is_written_stops_costing(url: str, app: App) -> None:
    app.engine.script = until_cancelled
    body = {"max_tokens": 5, "messages": [USER], "stream": True}
    with httpx.stream("POST", url + MESSAGES, json=body) as response:
        assert any("text_delta" in line for line in response.iter_lines())
    assert stopped(app)


def stopped(app: App) -> bool:
    deadline = time.monotonic() + 10
    while not app.engine.handles[0].cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    return app.engine.handles[0].cancelled


def test_no_tokens_at_all(app: App) -> None:
    app.says = Says("", "length")
    message = app.ask(max_tokens=0)
    assert app.engine.requests[0].max_tokens == 0
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
