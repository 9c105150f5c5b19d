"""LiteLLM against the server: whole, streamed, tools, formats, and its own error classes, on which agents act."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.clients.sure import COUNTS
from tests.server.live import Live

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the internet
import litellm

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

ASKED: Any = [{"role": "user", "content": "Name two rivers."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class River(BaseModel):
    name: str = Field(max_length=10)
    length: int = Field(ge=0, le=9999)


@pytest.fixture
def asked(live: Live) -> dict[str, Any]:
    litellm.telemetry = False
    return {
        "model": "openai/any",
        "api_base": f"{live.url}/v1",
        "api_key": "sk-anna",
        "max_retries": 0,
        "temperature": 0,
        "max_tokens": 8,
    }


def test_whole_and_streamed(asked: dict[str, Any]) -> None:
    litellm.completion(messages=COUNTS, **asked)
    whole = litellm.completion(messages=COUNTS, **asked)
    chunks = list(litellm.completion(messages=COUNTS, stream=True, **asked))
    streamed = "".join([chunk.choices[0].delta.content or "" for chunk in chunks])
    assert streamed == whole.choices[0].message.content
    assert whole.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_async(asked: dict[str, Any]) -> None:
    answer = asyncio.run(litellm.acompletion(messages=ASKED, **asked))
    assert answer.choices[0].message.content


def test_a_tool_that_must_be_called(asked: dict[str, Any]) -> None:
    forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    answer = litellm.completion(messages=ASKED, **{**asked, **forced, "max_tokens": 60})
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_a_format(asked: dict[str, Any]) -> None:
    answer = litellm.completion(messages=ASKED, response_format=River, **{**asked, "max_tokens": 80})
    assert River.model_validate_json(answer.choices[0].message.content)


def test_its_error_classes(asked: dict[str, Any]) -> None:
    long: Any = [{"role": "user", "content": "river " * 6000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=long, **asked)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=ASKED, **{**asked, "api_key": "sk-wrong"})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=ASKED, **{**asked, "temperature": 500})
