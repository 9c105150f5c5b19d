"""Ollama's own Python client, whole and streaming."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ollama import AsyncClient, Client, ResponseError
from tests.clients.sure import COUNTING, COUNTS
from tests.server.live import Live

pytestmark = pytest.mark.model

MODEL = "any-name"
ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: Any = {"temperature": 0, "num_predict": 8}
SCHEMA: Any = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live.url, headers={"Authorization": "Bearer sk-anna"})


def test_chat_and_its_stream_say_the_same(client: Client) -> None:
    whole = client.chat(MODEL, COUNTS, options=GREEDY)
    assert whole.message.content
    assert (whole.done, whole.model) == (True, "SmolLM2-135M-Instruct.Q4_1")
    assert 0 < (whole.eval_count or 0) <= 8
    *parts, last = client.chat(MODEL, COUNTS, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert (last.done, last.prompt_eval_count) == (True, whole.prompt_eval_count)


def test_it_reads_what_openais_api_reads(client: Client, live: Live) -> None:
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 8}
    headers = {"Authorization": "Bearer sk-anna"}
    said = live.client.post("/v1/chat/completions", json=body, headers=headers).json()
    answer = client.chat(MODEL, ASKED, options=GREEDY)
    assert answer.prompt_eval_count == said["usage"]["prompt_tokens"]
    prompt_n = live.client.post("/v1/chat/completions", json=body, headers=headers).json()["timings"][
        "prompt_n"
    ]
    assert prompt_n == 1


def test_generate(client: Client) -> None:
    said = client.generate(MODEL, COUNTING, raw=True, options=GREEDY)
    assert said.response
    streamed = client.generate(MODEL, COUNTING, raw=True, options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in streamed) == said.response
    answered = client.generate(MODEL, ASKED[0]["content"], options=GREEDY)
    assert answered.prompt_eval_count == client.chat(MODEL, ASKED, options=GREEDY).prompt_eval_count


def test_format(client: Client) -> None:
    said = client.chat(MODEL, ASKED, format=SCHEMA, options={"temperature": 0, "num_predict": 40})
    answer = json.loads(said.message.content or "")
    assert answer["colour"] in ("red", "green")
    assert answer["n"] <= 9


def test_a_tool_and_its_result_in_the_history(client: Client) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    history = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_name": "add"},
    ]
    first = client.chat(MODEL, ASKED, tools=[add], options=GREEDY)
    second = client.chat(MODEL, history, tools=[add], options=GREEDY)
    assert (second.prompt_eval_count or 0) > (first.prompt_eval_count or 0)
    assert (first.done, second.done) == (True, True)


def test_models(client: Client) -> None:
    (model,) = client.list().models
    assert model.model == "SmolLM2-135M-Instruct.Q4_1"
    shown = client.show(model.model)
    assert (shown.details.family if shown.details else None) == "llama"
    assert "completion" in (shown.capabilities or [])


def test_errors(client: Client, live: Live) -> None:
    with pytest.raises(ResponseError, match="temperature"):
        client.chat(MODEL, ASKED, options={"temperature": -5})
    with pytest.raises(ResponseError) as refused:
        Client(live.url).chat(MODEL, ASKED)
    assert refused.value.status_code == 401


def test_async(live: Live) -> None:
    async def run() -> list[Any]:
        client = AsyncClient(live.url, headers={"Authorization": "Bearer sk-anna"})
        return [part async for part in await client.chat(MODEL, ASKED, options=GREEDY, stream=True)]

    assert asyncio.run(run())[-1].done
