"""LangChain's ChatOpenAI: what applications do with it, beside what LangChain's own tests do."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from tests.server.live import Live

pytestmark = [pytest.mark.model, pytest.mark.allow_hosts(["127.0.0.1"])]

ASKED = "Name three fruits."


class Sky(BaseModel):
    """What the sky is like."""

    colour: Literal["blue", "grey", "black"]
    clouds: int = Field(ge=0, le=8)


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


@pytest.fixture
def model(live: Live) -> ChatOpenAI:
    return talking_to(live)


def talking_to(live: Live, **more: Any) -> ChatOpenAI:
    given: dict[str, Any] = {
        "api_key": "sk-anna",
        "max_tokens": 8,
        "temperature": 0,
        "max_retries": 0,
        **more,
    }
    return ChatOpenAI(base_url=live.url + "/v1", model="any-name", **given)


def text(message: AIMessage) -> str:
    assert isinstance(message.content, str)
    return message.content


async def test_whole_and_streamed_and_async_say_the_same(live: Live) -> None:
    said = "apples, pears and plums"  # greedy replies may differ by rounding; this one may not
    model = talking_to(live, max_tokens=20, extra_body={"guided_choice": [said]})
    assert text(model.invoke(ASKED)) == said
    parts = [text(chunk) for chunk in model.stream(ASKED)]
    assert "".join(parts) == said
    assert len(list(filter(None, parts))) > 1
    assert text(await model.ainvoke(ASKED)) == said
    assert "".join([text(chunk) async for chunk in model.astream(ASKED)]) == said


def test_usage_says_what_was_known(model: ChatOpenAI) -> None:
    asked: list[Any] = [SystemMessage("You know rivers."), HumanMessage("Name two of them.")]
    first = model.invoke(asked)
    usage = first.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"]["cache_read"] < usage["input_tokens"] - 1
    again: AIMessageChunk | None = None
    for chunk in model.stream(asked, stream_usage=True):
        again = chunk if again is None else again + chunk
    assert again is not None
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_tokens"] == usage["input_tokens"]
    assert again.usage_metadata["output_tokens"] == usage["output_tokens"]
    assert again.usage_metadata["input_token_details"]["cache_read"] == usage["input_tokens"] - 1
    more = model.invoke([*asked, first, HumanMessage("And one more?")]).usage_metadata
    assert more is not None
    assert more["input_token_details"]["cache_read"] >= usage["input_tokens"] + usage["output_tokens"] - 1


@pytest.mark.parametrize("choice", ["any", "required", "weather"])
def test_a_tool_is_called_and_answered(live: Live, choice: str) -> None:
    model = talking_to(live, max_tokens=60)
    tools = model.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
    asked: list[Any] = [HumanMessage("What is the weather in Rome?")]
    called = tools.invoke(asked)
    (call,) = called.tool_calls
    assert called.invalid_tool_calls == []
    assert called.response_metadata["finish_reason"] == "tool_calls"
    answer = weather.invoke(call)
    assert isinstance(answer, ToolMessage)
    assert answer.content in ("It is sunny in Paris.", "It is sunny in Rome.")
    end = model.bind_tools([weather], tool_choice="none").invoke([*asked, called, answer], max_tokens=4)
    assert end.tool_calls == []
    assert end.usage_metadata is not None
    assert called.usage_metadata is not None
    # The call comes back in the very tokens that were sampled; its end of turn may be read again.
    known = called.usage_metadata["total_tokens"]
    assert end.usage_metadata["input_token_details"]["cache_read"] >= known - 1


def test_streamed_calls_add_up(live: Live) -> None:
    tools = talking_to(live, max_tokens=60).bind_tools(
        [weather], tool_choice="weather", parallel_tool_calls=False
    )
    streamed: AIMessageChunk | None = None
    for chunk in tools.stream("What is the weather in Paris?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    (call,) = streamed.tool_calls
    assert (call["name"], call["args"]["city"]) in (("weather", "Paris"), ("weather", "Rome"))
    assert streamed.invalid_tool_calls == []


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(live: Live, method: Any) -> None:
    model = talking_to(live, max_tokens=60)
    sky = model.with_structured_output(Sky, method=method, include_raw=True).invoke("What is the sky like?")
    assert isinstance(sky, dict)
    assert sky["parsing_error"] is None
    assert isinstance(sky["parsed"], Sky)
    as_dict = model.with_structured_output(Sky.model_json_schema(), method=method)
    Sky.model_validate(as_dict.invoke("What is the sky like?"))


def test_structured_output_arrives_in_parts(live: Live) -> None:
    model = talking_to(live, max_tokens=60)
    schema = Sky.model_json_schema()
    parts = list(model.with_structured_output(schema, method="json_schema").stream("What is the sky like?"))
    assert len(parts) > 1
    Sky.model_validate(parts[-1])


def test_json_mode(live: Live) -> None:
    # Which keys there are, and how many, is the model's choice: it is an object, or said to be cut.
    model = talking_to(live, max_tokens=40, frequency_penalty=2)
    try:
        answer = model.with_structured_output(None, method="json_mode").invoke("Say it in JSON.")
        assert isinstance(answer, dict)
    except openai.LengthFinishReasonError as cut:
        begun = cut.completion.choices[0].message.content
        assert begun is not None
        assert begun.startswith("{")


def test_batches(model: ChatOpenAI) -> None:
    answers = model.batch([ASKED, "Name three trees.", "Name three seas."], max_tokens=2)
    assert all(text(answer) for answer in answers)


class TestErrors:
    def test_a_prompt_too_long_is_langchains_overflow(self, model: ChatOpenAI) -> None:
        with pytest.raises(ContextOverflowError) as caught:
            model.invoke("word " * 5000)
        assert isinstance(caught.value, openai.BadRequestError)
        assert caught.value.code == "context_length_exceeded"

    def test_so_it_is_in_a_stream(self, model: ChatOpenAI) -> None:
        with pytest.raises(ContextOverflowError):
            list(model.stream("word " * 5000))

    def test_a_wrong_key(self, live: Live) -> None:
        with pytest.raises(openai.AuthenticationError):
            talking_to(live, api_key="wrong").invoke("Hello")

    def test_a_wrong_parameter(self, live: Live) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            talking_to(live, temperature=-1).invoke("Hello")
        assert caught.value.param == "temperature"

    def test_an_image(self, model: ChatOpenAI) -> None:
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with pytest.raises(openai.BadRequestError) as caught:
            model.invoke([HumanMessage([{"type": "text", "text": "What is this?"}, part])])
        assert caught.value.code == "unsupported_content"
