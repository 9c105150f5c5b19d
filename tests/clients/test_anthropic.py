"""Anthropic's own Python client, sync and async: messages, streams, tools, counting, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from tests.clients.sure import COUNTS
from tests.server.live import Live

pytestmark = pytest.mark.model

MODEL = "claude-any-name"
NAME = "SmolLM2-135M-Instruct.Q4_1"
ASKED: Any = [{"role": "user", "content": "Name three colours."}]
# The client has dropped the parameter, for models of Anthropic's that take none.
ZERO: Any = {"extra_body": {"temperature": 0}}
GREEDY: Any = {"model": MODEL, "max_tokens": 8, **ZERO}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
    },
    "cache_control": {"type": "ephemeral"},
}
NOW: Any = {
    "name": "now",
    "input_schema": {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 8}}},
}
FORCED: Any = {
    "model": MODEL,
    **ZERO,
    "max_tokens": 100,
    "tools": [WEATHER, NOW],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
}


@pytest.fixture
def client(live: Live) -> Anthropic:
    return Anthropic(base_url=live.url, api_key="sk-anna", max_retries=0)


@pytest.fixture
def async_client(live: Live) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=live.url, api_key="sk-anna", max_retries=0)


@pytest.fixture
def said(client: Anthropic) -> str:
    """What the model says to ASKED, whole and greedy."""
    (block,) = client.messages.create(messages=COUNTS, **GREEDY).content
    assert block.type == "text"
    return block.text


def prompt_tokens(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


def test_whole(client: Anthropic) -> None:
    message = client.messages.create(messages=ASKED, system="Be brief.", **GREEDY)
    assert (message.type, message.role, message.model) == ("message", "assistant", NAME)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 0 < message.usage.output_tokens <= 8
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_streams_say_the_same(client: Anthropic, said: str) -> None:
    with client.messages.stream(messages=COUNTS, **GREEDY) as stream:
        assert "".join(stream.text_stream) == said
        message = stream.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == [said]
    # The prompt was read before: only its last token must be, for its logits.
    assert message.usage.input_tokens == 1
    assert message.usage.output_tokens > 0
    events = list(client.messages.create(messages=COUNTS, stream=True, **GREEDY))
    assert [events[0].type, events[-2].type, events[-1].type] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    # Told in the end: at the start nobody knows it, unless the first token comes at once.
    assert events[-2].type == "message_delta"
    assert events[-2].usage.cache_read_input_tokens == prompt_tokens(message.usage) - 1


def test_async_replies_are_not_mixed_up(async_client: AsyncAnthropic) -> None:
    # Each is held to its own answer: what a model says to one prompt can differ by rounding beside others.
    def asked(word: str) -> Any:
        wanted = {"type": "json_schema", "schema": {"const": word}}
        return {"messages": ASKED, **GREEDY, "max_tokens": 30, "extra_body": {"output_format": wanted}}

    async def whole(word: str) -> str:
        (block,) = (await async_client.messages.create(**asked(word))).content
        assert block.type == "text"
        return str(block.text)

    async def streamed(word: str) -> str:
        async with async_client.messages.stream(**asked(word)) as stream:
            return "".join([text async for text in stream.text_stream])

    async def together() -> list[str]:
        return list(
            await asyncio.gather(whole("river"), streamed("tower"), whole("keeper"), streamed("lamp"))
        )

    assert asyncio.run(together()) == ['"river"', '"tower"', '"keeper"', '"lamp"']


def test_a_beginning_is_continued(client: Anthropic, said: str) -> None:
    begun: Any = [*COUNTS, {"role": "assistant", "content": said[:5]}]
    message = client.messages.create(messages=begun, **GREEDY)
    (block,) = message.content
    assert block.type == "text"
    assert block.text


def test_stop_sequences(client: Anthropic, said: str) -> None:
    stop = said.split()[1]
    message = client.messages.create(messages=COUNTS, stop_sequences=["never said", stop], **GREEDY)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert "".join(b.text for b in message.content if b.type == "text") == said.partition(stop)[0]


def test_a_forced_call(client: Anthropic) -> None:
    message = client.messages.create(messages=ASKED, **FORCED)
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert (call.type, call.name) == ("tool_use", "weather")
    assert {"city", "unit"} <= set(call.input)
    with client.messages.stream(messages=ASKED, **FORCED) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert partial
    assert streamed.type == "tool_use"
    assert (streamed.name, json.loads("".join(partial))) == (call.name, streamed.input)


def test_a_turn_of_calls_and_results_reads_only_what_is_new(client: Anthropic, live: Live) -> None:
    message = client.messages.create(messages=ASKED, **FORCED)
    (call,) = message.content
    assert call.type == "tool_use"
    turned = {**call.model_dump(), "input": dict(reversed(call.input.items()))}
    back = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    history: Any = [*ASKED, {"role": "assistant", "content": [turned]}, {"role": "user", "content": [back]}]
    asked: Any = {**FORCED, "tools": [NOW, WEATHER], "tool_choice": {"type": "none"}, "max_tokens": 4}
    usage = client.messages.create(messages=history, **asked).usage
    new = live.model.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nSunny.\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    # The last sampled token was never evaluated.
    assert usage.input_tokens + (usage.cache_creation_input_tokens or 0) <= len(new) + 1


def test_counting_says_what_a_message_costs(client: Anthropic) -> None:
    asked: Any = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}],
        "system": [{"type": "text", "text": "Count.", "cache_control": {"type": "ephemeral"}}],
        "tools": [WEATHER, NOW],
    }
    counted = client.messages.count_tokens(model=MODEL, **asked).input_tokens
    message = client.messages.create(model=MODEL, max_tokens=1, **asked)
    assert counted == prompt_tokens(message.usage)


def test_what_a_breakpoint_creates_is_read_by_the_next(client: Anthropic) -> None:
    system: Any = [{"type": "text", "text": "Rooks fly. " * 20, "cache_control": {"type": "ephemeral"}}]
    first = client.messages.create(messages=ASKED, system=system, **GREEDY).usage
    other: Any = [{"role": "user", "content": "And now something else."}]
    second = client.messages.create(messages=other, system=system, **GREEDY).usage
    assert first.cache_creation_input_tokens
    assert first.cache_creation_input_tokens > 60
    assert second.cache_read_input_tokens
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens
    assert second.cache_creation_input_tokens == 0


def test_a_schema_for_the_reply(client: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    wanted: Any = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(messages=ASKED, output_config=wanted, **{**GREEDY, "max_tokens": 40})
    (block,) = message.content
    assert block.type == "text"
    assert block.text.replace(" ", "").replace("\n", "") in ('{"colour":"red"}', '{"colour":"blue"}')


def test_betas(client: Anthropic, said: str) -> None:
    message = client.beta.messages.create(messages=COUNTS, betas=["context-1m-2025-08-07"], **GREEDY)
    assert [block.text for block in message.content if block.type == "text"] == [said]


def test_models(client: Anthropic) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.type) == (NAME, "model")
    assert client.models.retrieve(NAME).created_at == model.created_at


def test_errors_are_the_clients_own(client: Anthropic, live: Live) -> None:
    image: Any = [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]
    with pytest.raises(anthropic.BadRequestError, match="image") as refused:
        client.messages.create(messages=[{"role": "user", "content": image}], **GREEDY)
    assert refused.value.request_id is not None
    body: Any = refused.value.body
    assert body["request_id"] == refused.value.request_id
    long: Any = [{"role": "user", "content": "word " * 5000}]
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4095 maximum"):
            client.messages.create(messages=long, stream=stream, **GREEDY)
    with pytest.raises(anthropic.AuthenticationError):
        Anthropic(base_url=live.url, api_key="wrong", max_retries=0).messages.create(messages=ASKED, **GREEDY)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("another")


def test_a_bearer_token_is_a_key_too(live: Live) -> None:
    client = Anthropic(base_url=live.url, auth_token="sk-anna", max_retries=0)
    assert client.messages.create(messages=ASKED, **GREEDY).content


def test_closing_a_stream_stops_the_reply(client: Anthropic, live: Live) -> None:
    long: Any = {**GREEDY, "max_tokens": 3000, "extra_body": {"repeat_penalty": 1.3}}
    with client.messages.stream(messages=ASKED, **long) as stream:
        next(iter(stream.text_stream))
    assert live.idle(5)
