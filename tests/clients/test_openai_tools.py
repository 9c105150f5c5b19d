"""OpenAI's own client calls tools: forced, as the model is too small to choose one, whole, streamed and parsed."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from tests.server.live import Live

pytestmark = pytest.mark.model

MODEL = "any-name"
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME: Any = {
    "type": "function",
    "function": {
        "name": "now",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "maxLength": 8}},
            "required": ["zone"],
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
FORCED: Any = {
    "model": MODEL,
    "tools": [WEATHER, TIME],
    "temperature": 0,
    "max_tokens": 200,
    "parallel_tool_calls": False,
}


@pytest.fixture
def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


def valid(name: str, arguments: str) -> bool:
    said = json.loads(arguments)
    if name == "now":
        return set(said) == {"zone"}
    return set(said) == {"city", "unit"} and said["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call(client: OpenAI, choice: Any) -> None:
    choices = client.chat.completions.create(messages=ASKED, tool_choice=choice, **FORCED).choices
    assert choices[0].finish_reason == "tool_calls"
    assert choices[0].message.content is None
    (call,) = choices[0].message.tool_calls or []
    assert call.type == "function"
    assert valid(call.function.name, call.function.arguments)
    if choice is NAMED:
        assert call.function.name == "weather"


def test_a_stream_says_the_same(client: OpenAI) -> None:
    only = {"city": {"enum": ["Paris"]}, "unit": {"enum": ["celsius"]}}  # one call is possible
    narrow = {
        "type": "object",
        "properties": only,
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": narrow}}
    forced = {**FORCED, "tools": [tool]}
    whole = client.chat.completions.create(messages=ASKED, tool_choice=NAMED, **forced).choices[0].message
    with client.chat.completions.stream(messages=ASKED, tool_choice=NAMED, **forced) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        message = stream.get_final_completion().choices[0].message
    assert len(deltas) > 1
    assert whole.tool_calls
    assert message.tool_calls
    called, streamed = whole.tool_calls[0], message.tool_calls[0]
    assert called.type == "function"
    assert (streamed.function.name, streamed.function.arguments) == (
        called.function.name,
        called.function.arguments,
    )


def test_several_calls(client: OpenAI) -> None:
    many: Any = {**FORCED, "parallel_tool_calls": True, "temperature": 1.0, "seed": 3}
    choice = client.chat.completions.create(messages=ASKED, tool_choice="required", **many).choices[0]
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls) >= 1
    complete = calls if choice.finish_reason == "tool_calls" else calls[:-1]
    assert all(valid(c.function.name, c.function.arguments) for c in complete if c.type == "function")


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


def test_parsed_arguments(client: OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(Weather)
    answer = client.chat.completions.parse(
        messages=ASKED,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "Weather"}},
        model=MODEL,
        temperature=0,
        max_tokens=300,
        parallel_tool_calls=False,
        extra_body={"repeat_penalty": 1.2},
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_turn_of_calls_and_results_reads_only_what_is_new(client: OpenAI, live: Live) -> None:
    answer = client.chat.completions.create(messages=ASKED, tool_choice=NAMED, **FORCED)
    message = answer.choices[0].message
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    # As clients do: parsed, and written in another way.
    arguments = json.dumps(dict(reversed(json.loads(call.function.arguments).items())), indent=2)
    function = {"arguments": arguments, "name": call.function.name}
    made = {"id": call.id, "type": "function", "function": function}
    history: Any = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
    ]
    turned: Any = [
        TIME,
        {"function": dict(reversed(WEATHER["function"].items())), "type": "function"},
    ]
    again = client.chat.completions.create(
        model=MODEL, messages=history, tools=turned, tool_choice="none", temperature=0, max_tokens=4
    )
    usage = again.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    evaluated = usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
    new = live.model.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nSunny.\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    # The last sampled token was never evaluated.
    assert evaluated <= len(new) + 1


def test_what_the_model_is_free_to_say_never_breaks(client: OpenAI) -> None:
    for seed in range(3):
        stream = client.chat.completions.create(
            messages=ASKED,
            tools=[WEATHER, TIME],
            model=MODEL,
            temperature=1.5,
            seed=seed,
            max_tokens=40,
            stream=True,
        )
        reasons = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
        assert reasons[-1] in ("stop", "length", "tool_calls")
