"""Answers, whole and as streams, in the two APIs' shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine

from onceread.engine.request import DoneEvent, FinishEvent, RequestHandle, TextEvent, TokenLogprob, Usage
from onceread.native.params import Constraint
from onceread.server.chat_schemas import ChatCompletion
from onceread.server.text_schemas import Completion

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def stream(client: TestClient, path: str, **body: Any) -> list[dict[str, Any]]:
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_chat_chunks_in_order(client: TestClient) -> None:
    chunks = stream(client, CHAT, messages=MESSAGES)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    choices = [c["choices"][0] for c in chunks]
    assert [c["delta"] for c in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "hé"},
        {"content": "llo"},
        {},
    ]
    assert [c["finish_reason"] for c in choices] == [None, None, None, "stop"]
    assert not any("usage" in c for c in chunks)
    assert ["timings" in c for c in chunks] == [False, False, False, True]


def test_the_last_chunk_has_the_usage_if_asked_for(client: TestClient) -> None:
    *chunks, last = stream(client, CHAT, messages=MESSAGES, stream_options={"include_usage": True})
    assert all(c["usage"] is None and c["choices"] for c in chunks)
    assert last["choices"] == []
    assert not any("timings" in c for c in chunks)
    whole = client.post(CHAT, json={"messages": MESSAGES}).json()
    assert (last["usage"], last["timings"]) == (whole["usage"], whole["timings"])


def test_usage_adds_up(client: TestClient) -> None:
    body = client.post(TEXT, json={"prompt": ["abc", "defgh"], "n": 2}).json()
    usage, timings = body["usage"], body["timings"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 8, 16)
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_by_source"].values()) == 6
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (6, 2, 8)
    assert (timings["prompt_ms"], timings["predicted_per_second"]) == (500.0, 8.0)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [(CHAT, {"messages": MESSAGES}, ChatCompletion), (TEXT, {"prompt": "a"}, Completion)],
    ids=["chat", "text"],
)
@pytest.mark.parametrize("logprobs", [False, True])
def test_whole_answers_are_as_documented(
    client: TestClient, path: str, body: dict[str, Any], model: Any, logprobs: bool
) -> None:
    more = {} if not logprobs else {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    answer = client.post(path, json={**body, **more, "n": 2}).json()
    assert model.model_validate(answer, strict=True).model_dump(exclude_unset=True) == answer


def test_choices_of_several_prompts(client: TestClient) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "echo": True}
    whole = client.post(TEXT, json=body).json()["choices"]
    assert [(c["index"], c["text"]) for c in whole] == [
        (0, "ahéllo"),
        (1, "ahéllo"),
        (2, "bhéllo"),
        (3, "bhéllo"),
    ]
    texts = ["", "", "", ""]
    reasons = []
    for chunk in stream(client, TEXT, **body):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == [c["text"] for c in whole]
    assert reasons == ["stop"] * 4


@pytest.mark.parametrize(
    ("prompt", "tokens", "echoed", "alignable"),
    [
        ("hé", (104, 195, 169), "hé", True),
        ("<|im_end|>", (258,), "<|im_end|>", True),
        ([104, 105], (104, 105), "hi", False),
        ([[104, 105]], (104, 105), "hi", False),
        ("", (256,), "", True),
    ],
    ids=["text", "a control token", "ids", "a list of ids", "nothing"],
)
def test_prompts(
    client: TestClient, engine: FakeEngine, prompt: Any, tokens: tuple[int, ...], echoed: str, alignable: bool
) -> None:
    answer = client.post(TEXT, json={"prompt": prompt, "echo": True, "max_tokens": 0}).json()
    assert answer["choices"][0]["text"] == echoed
    (request,) = engine.requests
    assert (request.prompt, request.alignable, request.max_tokens) == (tokens, alignable, 0)


def test_chat_logprobs(client: TestClient) -> None:
    options = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
    content = client.post(CHAT, json=options).json()["choices"][0]["logprobs"]["content"]
    first = {"token": "hé", "logprob": -0.5, "bytes": [104, 195, 169]}
    assert content[0] == {**first, "top_logprobs": [first]}
    streamed = [c["choices"][0]["logprobs"] for c in stream(client, CHAT, **options)]
    assert [entry for part in streamed if part for entry in part["content"]] == content


def test_text_logprobs(client: TestClient) -> None:
    options = {"prompt": "a", "logprobs": 1}
    logprobs = client.post(TEXT, json=options).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["hé", "llo"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"hé": -0.5}, {"llo": -0.5}],
        "text_offset": [0, 2],
    }
    streamed = [c["choices"][0]["logprobs"] for c in stream(client, TEXT, **options)]
    for key, value in logprobs.items():
        assert [entry for part in streamed if part for entry in part[key]] == value


def test_tokens_that_are_no_text(client: TestClient, engine: FakeEngine) -> None:
    half = TokenLogprob(195, b"\xc3", float("-inf"))
    control = TokenLogprob(258, b"", -1.0)

    def script(_: FakeEngine, handle: RequestHandle) -> None:
        handle.push(TextEvent(0, "", 2, (half, control)))
        handle.push(FinishEvent(0, "length"))
        handle.push(DoneEvent(Usage()))

    engine.script = script
    content = client.post(CHAT, json={"messages": MESSAGES, "logprobs": True}).json()["choices"][0][
        "logprobs"
    ]["content"]
    assert [(c["token"], c["bytes"], c["logprob"]) for c in content] == [
        ("bytes:\\xc3", [195], -9999.0),
        ("<|im_end|>", list(b"<|im_end|>"), -1.0),
    ]


def test_line_separators_do_not_break_events(client: TestClient, engine: FakeEngine) -> None:
    said = "a\u2028b\u0085c\r\nd"

    def script(_: FakeEngine, handle: RequestHandle) -> None:
        handle.push(TextEvent(0, said, 1))
        handle.push(FinishEvent(0, "stop"))
        handle.push(DoneEvent(Usage()))

    engine.script = script
    response = client.post(TEXT, json={"prompt": "a", "stream": True})
    events = [line for line in response.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    assert json.loads(events[0].removeprefix("data: "))["choices"][0]["text"] == said


def test_parameters_reach_the_engine(client: TestClient, engine: FakeEngine) -> None:
    body = {
        "messages": MESSAGES,
        "temperature": 0,
        "top_k": -1,
        "seed": 2**40 + 5,
        "stop": "x",
        "max_completion_tokens": 3,
        "logit_bias": {"1": -100, "2": 5},
        "dry_sequence_breakers": ["x"],
        "grammar": "root ::= [a-z]*",
        "ignore_eos": True,
        "logprobs": True,
        "n": 2,
    }
    assert client.post(CHAT, json=body).status_code == 200
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0, 0, 0.95, 5)
    assert sampling.logit_bias == ((1, -100.0), (2, 5.0))
    assert sampling.dry_sequence_breakers == ("x",)
    assert sampling.constraint == Constraint("gbnf", "root ::= [a-z]*", "grammar")
    assert (request.stop, request.max_tokens, request.n, request.logprobs) == (("x",), 3, 2, 0)
    assert request.ignore_eos


def test_null_is_the_default(client: TestClient, engine: FakeEngine) -> None:
    names = [
        "temperature",
        "stop",
        "n",
        "seed",
        "logprobs",
        "tools",
        "response_format",
        "stream_options",
        "max_tokens",
    ]
    assert client.post(CHAT, json={"messages": MESSAGES, **dict.fromkeys(names)}).status_code == 200
    assert client.post(CHAT, json={"messages": MESSAGES}).status_code == 200
    first, second = engine.requests
    assert first == second


def test_harmless_values_of_unsupported_parameters(client: TestClient) -> None:
    body = {
        "messages": MESSAGES,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
    }
    response = client.post(CHAT, json=body)
    assert response.status_code == 200
    assert "x-onceread-warning" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_parameters_are_told_of(client: TestClient, stream: bool) -> None:
    unknown = {"verbosity": "low", "b\r\nset-cookie: x": 1, "é" * 200: 1}
    response = client.post(CHAT, json={"messages": MESSAGES, "stream": stream, **unknown})
    assert response.status_code == 200
    warning = response.headers["x-onceread-warning"]
    assert warning == f"ignored parameters: b??set-cookie??x, verbosity, {'?' * 64}"


def test_a_limit_of_the_server(engine: FakeEngine) -> None:
    from tests.server.fakes import fake_app

    client = TestClient(fake_app(engine, max_tokens_limit=16))
    for asked in (None, 5, 500):
        client.post(TEXT, json={"prompt": "a", "max_tokens": asked})
    assert [request.max_tokens for request in engine.requests] == [16, 5, 16]


def test_earlier_tool_calls_reach_the_template(engine: FakeEngine) -> None:
    from tests.server.fakes import fake_app

    app = fake_app(engine)
    serving = app.state.onceread.serving()
    source = (
        "{% for c in messages[0].tool_calls %}{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %}"
    )
    object.__setattr__(serving, "template", type(serving.template)(source, control_tokens={}))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert TestClient(app).post(CHAT, json={"messages": messages}).status_code == 200
    assert bytes(engine.requests[0].prompt) == b"f(5)"


@pytest.mark.parametrize(
    ("said", "continued"),
    [
        ({}, True),
        ({"continue_final_message": True}, True),
        ({"continue_final_message": False}, False),
        ({"add_generation_prompt": True}, False),
    ],
)
def test_continuing_a_message(
    client: TestClient, engine: FakeEngine, said: dict[str, bool], continued: bool
) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    assert client.post(CHAT, json={"messages": messages, **said}).status_code == 200
    prompt = bytes(t for t in engine.requests[0].prompt if t < 256)
    assert prompt.endswith(b"assistant\nWell, " if continued else b"assistant\n")
