"""OpenAI's own client speaks the Responses API: whole, streamed, remembered, called and parsed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel
from tests.clients.sure import COUNTS
from tests.server.live import Live

pytestmark = pytest.mark.model

MODEL = "any-name"
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
ASKED = "Name three colours."
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


@pytest.fixture
def async_client(live: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


def evaluated(response: Response) -> int:
    usage = response.usage
    assert usage is not None
    return usage.input_tokens - usage.input_tokens_details.cached_tokens


def test_whole(client: OpenAI) -> None:
    response = client.responses.create(input=ASKED, instructions="Be brief.", **GREEDY)
    assert response.output_text
    assert response.status in ("completed", "incomplete")
    assert response.model == "SmolLM2-135M-Instruct.Q4_1"
    usage = response.usage
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens <= 8


def test_a_stream_says_the_same(client: OpenAI) -> None:
    whole = client.responses.create(input=COUNTS, **GREEDY)
    with client.responses.stream(input=COUNTS, **GREEDY) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert len(deltas) > 1
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    raw = list(client.responses.create(input=COUNTS, stream=True, **GREEDY))
    last = raw[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == whole.output_text
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


def test_a_stream_that_ends_by_itself_has_a_final_response(client: OpenAI) -> None:
    with client.responses.stream(input=ASKED, **GREEDY, extra_body={"regex": "[a-z]{3}"}) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    assert len(final.output_text) == 3


def test_async_says_the_same(client: OpenAI, async_client: AsyncOpenAI) -> None:
    whole = client.responses.create(input=COUNTS, **GREEDY).output_text

    async def created() -> str:
        return (await async_client.responses.create(input=COUNTS, **GREEDY)).output_text

    async def streamed() -> str:
        stream = await async_client.responses.create(input=COUNTS, stream=True, **GREEDY)
        return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

    async def one_after_the_other() -> list[str]:  # together they would share batches, and round otherwise
        return [await created(), await streamed()]

    assert asyncio.run(one_after_the_other()) == [whole] * 2


def test_only_the_newest_message_is_sent_and_read(client: OpenAI, live: Live) -> None:
    first = client.responses.create(input="My name is Anna. " * 20, **GREEDY)
    second = client.responses.create(input="And yours?", previous_response_id=first.id, **GREEDY)
    assert second.previous_response_id == first.id
    new = live.model.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\nAnd yours?<|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    assert evaluated(second) <= len(new) + 1  # the last sampled token was never evaluated
    by_hand = client.responses.create(
        input=[
            {"role": "user", "content": "My name is Anna. " * 20},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And yours?"},
        ],
        **GREEDY,
    )
    assert evaluated(by_hand) == 1  # it is the same prompt to the token


def test_what_is_stored_can_be_read_and_forgotten(client: OpenAI) -> None:
    response = client.responses.create(input=ASKED, metadata={"topic": "colours"}, **GREEDY)
    found = client.responses.retrieve(response.id)
    assert found == response
    assert found.metadata == {"topic": "colours"}
    (item,) = client.responses.input_items.list(response.id).data
    assert item.type == "message"
    assert item.content[0].text == ASKED  # type: ignore[union-attr]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input="More", previous_response_id=response.id, **GREEDY)
    assert raised.value.code == "previous_response_not_found"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_turn_of_calls_and_results_reads_only_what_is_new(
    client: OpenAI, live: Live, streams: bool
) -> None:
    asked: Any = {
        "input": "What is the weather in Paris?",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        **GREEDY,
        "max_output_tokens": 200,
    }
    if streams:
        with client.responses.stream(**asked) as stream:
            deltas = [
                event.delta for event in stream if event.type == "response.function_call_arguments.delta"
            ]
            response: Response = stream.get_final_response()
        assert len(deltas) > 1
    else:
        response = client.responses.create(**asked)
    (call,) = response.output
    assert call.type == "function_call"
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"}
    again = client.responses.create(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}],
        previous_response_id=response.id,
        tools=[WEATHER],
        tool_choice="none",
        **GREEDY,
    )
    new = live.model.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nSunny.\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    assert evaluated(again) <= len(new) + 1


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    degrees: Literal[10, 20, 30]


def test_parsed_output(client: OpenAI) -> None:
    response = client.responses.parse(
        input="The weather in Paris, as JSON.", text_format=Weather, **{**GREEDY, "max_output_tokens": 100}
    )
    assert isinstance(response.output_parsed, Weather)


def test_input_tokens(client: OpenAI) -> None:
    said: Any = {"input": ASKED, "instructions": "Be brief.", "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(model=MODEL, **said)
    usage = client.responses.create(**said, **GREEDY).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input=ASKED, background=True, **GREEDY)
    assert raised.value.param == "background"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(input="x " * 10_000, stream=stream, **GREEDY)
        assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.cancel("resp_" + client.responses.create(input=ASKED, **GREEDY).id[5:])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-nobody").responses.create(input=ASKED, **GREEDY)
