"""OpenAI's own Python client, sync and async, streaming and not."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from tests.clients.sure import COUNTING, COUNTS
from tests.server.live import Live

pytestmark = pytest.mark.model

MODEL = "any-name"
MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8}


@pytest.fixture
def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


@pytest.fixture
def async_client(live: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


@pytest.fixture
def said(client: OpenAI) -> str:
    """What the model says to COUNTS, whole and greedy."""
    text = client.chat.completions.create(messages=COUNTS, **GREEDY).choices[0].message.content
    assert text
    return text


def test_whole(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.model == "SmolLM2-135M-Instruct.Q4_1"
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 8


def test_streams_say_the_same(client: OpenAI, said: str) -> None:
    stream = client.chat.completions.create(
        messages=COUNTS, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == said
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks].count(None) == len(chunks) - 1
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    # The prompt was read before: only its last token must be, for its logits.
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - 1


def test_async_replies_are_not_mixed_up(async_client: AsyncOpenAI) -> None:
    # Each is held to its own answer: what a model says to one prompt can differ by rounding beside others.
    def asked(word: str) -> Any:
        return {"messages": MESSAGES, "extra_body": {"regex": f"{word} of light{{1,3}}"}, **GREEDY}

    async def whole(word: str) -> str:
        answer = await async_client.chat.completions.create(**asked(word))
        return answer.choices[0].message.content or ""

    async def streamed(word: str) -> str:
        stream = await async_client.chat.completions.create(stream=True, **asked(word))
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def together() -> list[str]:
        return list(
            await asyncio.gather(whole("Rivers"), streamed("Towers"), whole("Keepers"), streamed("Lamps"))
        )

    said = asyncio.run(together())
    assert [text.partition(" of light")[0] for text in said] == ["Rivers", "Towers", "Keepers", "Lamps"]


def test_several_replies(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, seed=1, temperature=1.5, max_tokens=6
    )
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) > 1
    again = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, seed=1, temperature=1.5, max_tokens=6, stream=True
    )
    texts = ["", "", ""]
    for chunk in again:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(texts)


def test_stop_strings(client: OpenAI, said: str) -> None:
    stop = said[2:5]
    answer = client.chat.completions.create(messages=COUNTS, stop=stop, **GREEDY).choices[0]
    assert (answer.message.content, answer.finish_reason) == (said[: said.index(stop)], "stop")
    chunks = client.chat.completions.create(messages=COUNTS, stop=[stop, "§"], stream=True, **GREEDY)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == said[: said.index(stop)]


def test_logprobs(client: OpenAI, said: str) -> None:
    answer = client.chat.completions.create(messages=COUNTS, logprobs=True, top_logprobs=3, **GREEDY).choices[
        0
    ]
    assert answer.logprobs is not None
    content = answer.logprobs.content
    assert content is not None
    assert "".join(entry.token for entry in content) == said
    assert b"".join(bytes(entry.bytes or []) for entry in content).decode() == said
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert [t.logprob for t in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )


def test_text_completions(client: OpenAI) -> None:
    whole = client.completions.create(prompt=[COUNTING, COUNTING[3:]], logprobs=2, **GREEDY)
    texts = [c.text for c in whole.choices]
    for choice in whole.choices:
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert "".join(logprobs.tokens) == choice.text
        assert logprobs.text_offset == [
            len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))
        ]
        assert logprobs.top_logprobs is not None
        assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))
    streamed = ["", ""]
    for chunk in client.completions.create(prompt=[COUNTING, COUNTING[3:]], stream=True, **GREEDY):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_token_ids_and_echo(client: OpenAI, live: Live) -> None:
    prompt = COUNTING
    ids = live.model.vocab.tokenize(prompt, add_special=True, parse_special=True)
    by_text = client.completions.create(prompt=prompt, echo=True, **GREEDY).choices[0].text
    by_ids = client.completions.create(prompt=ids, echo=True, **GREEDY).choices[0].text
    assert by_text.startswith(prompt)
    assert by_ids == by_text


def test_continuing_a_message_evaluates_one_token(client: OpenAI) -> None:
    asked = COUNTS
    greedy: Any = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    begun = client.chat.completions.create(messages=asked, **greedy).choices[0]
    assert begun.finish_reason == "length"
    messages: Any = [*asked, {"role": "assistant", "content": begun.message.content}]
    more = client.chat.completions.create(messages=messages, **greedy)
    whole = client.chat.completions.create(messages=asked, **{**greedy, "max_tokens": 12})
    assert begun.message.content + more.choices[0].message.content == whole.choices[0].message.content
    assert more.usage is not None
    assert more.usage.prompt_tokens - more.usage.prompt_tokens_details.cached_tokens == 1


def test_a_second_turn_reads_only_what_is_new(client: OpenAI, live: Live, said: str) -> None:
    more: Any = [
        *COUNTS,
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And three more?"},
    ]
    usage = client.chat.completions.create(messages=more, **GREEDY).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    new = live.model.vocab.tokenize(
        "user\nAnd three more?assistant\n", add_special=False, parse_special=False
    )
    # What is new: the turn's text, the control tokens and line breaks around it, and the end of the last reply.
    evaluated = usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
    assert evaluated <= len(new) + 8


def test_what_openai_does_not_know_goes_into_the_extra_body(client: OpenAI) -> None:
    client.chat.completions.create(messages=MESSAGES, **GREEDY)
    other: Any = [{"role": "user", "content": "Name three rivers."}]
    ours = {"explain": True}
    whole: Any = client.chat.completions.create(messages=other, extra_body=ours, **GREEDY)
    assert whole.usage is not None
    assert 0 < whole.explain["position"] <= whole.usage.prompt_tokens
    assert whole.explain["shared"].endswith("Name three")
    assert whole.explain["prompt"].startswith(" rivers.")
    salted: Any = client.chat.completions.create(
        messages=other, extra_body={**ours, "cache_salt": "s"}, **GREEDY
    )
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert salted.explain is None


class Answer(BaseModel):
    """An answer, as a client wants to have it."""

    colours: list[Literal["red", "green", "blue"]] = Field(min_length=1, max_length=2)
    certain: bool


def test_structured_output_is_parsed(client: OpenAI) -> None:
    whole = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer, temperature=0, max_tokens=60
    )
    answer = whole.choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.parsed == Answer.model_validate_json(answer.message.content or "")
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Answer, temperature=0, max_tokens=60
    ) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.parsed == Answer.model_validate_json(streamed.message.content or "")


def test_structured_output_that_is_cut_is_told_of(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Answer, temperature=0, max_tokens=3
        )


def test_any_object(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, temperature=0, max_tokens=80
    ).choices[0]
    assert (answer.message.content or "").startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)


def test_constraints_of_other_servers(client: OpenAI) -> None:
    ours: Any = [{"regex": "[a-f]{3}"}, {"guided_choice": ["abc", "def"]}, {"grammar": "root ::= [a-f]{3}"}]
    for constraint in ours:
        answer = client.completions.create(prompt="abc", extra_body=constraint, **GREEDY).choices[0]
        assert answer.finish_reason == "stop"
        assert re.fullmatch("[a-f]{3}", answer.text)


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id == "SmolLM2-135M-Instruct.Q4_1"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


class TestErrors:
    def test_wrong_key(self, live: Live) -> None:
        with pytest.raises(openai.AuthenticationError) as caught:
            OpenAI(base_url=live.url + "/v1", api_key="wrong", max_retries=0).models.list()
        assert caught.value.code == "invalid_api_key"

    def test_wrong_parameter(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1, max_tokens=1)
        assert caught.value.param == "temperature"

    def test_tools(self, client: OpenAI) -> None:
        functions: Any = [{"name": "f"}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, functions=functions, max_tokens=1)
        assert (caught.value.param, caught.value.code) == ("functions", "unsupported_parameter")

    def test_a_schema_that_can_not_be_enforced(self, client: OpenAI) -> None:
        schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format=schema, max_tokens=1
            )
        assert caught.value.param == "response_format"

    @pytest.mark.parametrize("stream", [False, True])
    def test_too_long(self, client: OpenAI, stream: bool) -> None:
        long: Any = [{"role": "user", "content": "word " * 5000}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=long, stream=stream)
        assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["n_prompt_tokens"] > caught.value.body["n_ctx"]

    def test_closing_a_stream_ends_the_request(self, client: OpenAI, live: Live) -> None:
        before = live.engine.stats().requests_cancelled
        stream = client.completions.create(
            model=MODEL, prompt="On and on", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
        assert live.idle()
        assert live.engine.stats().requests_cancelled == before + 1
