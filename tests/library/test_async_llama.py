"""`AsyncLlama`: the same answers, awaited; who stops waiting stops the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.library.endless import ENDLESS

from onceread import AsyncLlama, Llama
from onceread.engine.errors import ContextLengthExceeded
from onceread.library.errors import InvalidParameter

pytestmark = pytest.mark.model

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest_asyncio.fixture(scope="module")
async def llm(tiny_path: Path) -> AsyncIterator[AsyncLlama]:
    async with await AsyncLlama.load(tiny_path, n_ctx=4096, cache_ram="64MiB", verbose=False) as loaded:
        yield loaded


async def cancelled(llm: AsyncLlama, before: int) -> int:
    """Requests cancelled since ``before``, once the engine has come to rest."""
    engine = llm.llama._serving.engine
    for _ in range(500):
        stats = engine.stats()
        if stats.running == stats.waiting == 0:
            break
        await asyncio.sleep(0.02)
    return engine.stats().requests_cancelled - before


def keys(value: Any) -> Any:
    return {key: keys(item) for key, item in value.items()} if isinstance(value, dict) else None


async def test_answers_have_the_same_shape(llm: AsyncLlama) -> None:
    assert keys(await llm("The sea", max_tokens=2)) == keys(llm.llama("The sea", max_tokens=2))
    awaited = await llm.create_chat_completion(MESSAGES, max_tokens=2)
    assert keys(awaited) == keys(llm.llama.create_chat_completion(MESSAGES, max_tokens=2))
    assert await llm.embed("The sea", normalize=True) == llm.llama.embed("The sea", normalize=True)
    assert keys(await llm.create_embedding("The sea")) == keys(llm.llama.create_embedding("The sea"))


async def test_streams_have_the_same_shape(llm: AsyncLlama) -> None:
    stream = await llm.create_chat_completion(MESSAGES, max_tokens=3, stream=True)
    chunks = [chunk async for chunk in stream]
    theirs = list(llm.llama.create_chat_completion(MESSAGES, max_tokens=3, stream=True))
    assert keys(chunks[0]) == keys(theirs[0])
    assert keys(chunks[-1]) == keys(theirs[-1])
    assert chunks[-1]["timings"]["prompt_n"] == 1 or chunks[-1]["timings"]["cache_n"] == 0


async def test_many_at_a_time_are_computed_together(llm: AsyncLlama) -> None:
    engine = llm.llama._serving.engine
    before = engine.stats().decode_calls_total
    answers = await asyncio.gather(*(llm(f"{i} ", max_tokens=20, ignore_eos=True) for i in range(20)))
    written = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert engine.stats().decode_calls_total - before < written


async def test_who_is_cancelled_stops_the_work(llm: AsyncLlama) -> None:
    before = llm.llama._serving.engine.stats().requests_cancelled
    task = asyncio.ensure_future(llm("The sea", **ENDLESS))
    for _ in range(500):
        if llm.llama._serving.engine.stats().running:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await cancelled(llm, before) == 1


async def test_a_stream_that_is_left_stops_the_work(llm: AsyncLlama) -> None:
    before = llm.llama._serving.engine.stats().requests_cancelled
    async with await llm("The sea", stream=True, **ENDLESS) as stream:
        await anext(stream)
    assert await cancelled(llm, before) == 1
    stream = await llm("The sea", stream=True, **ENDLESS)
    await anext(stream)
    del stream
    assert await cancelled(llm, before) == 2


async def test_errors_are_the_same(llm: AsyncLlama) -> None:
    with pytest.raises(InvalidParameter) as refused:
        await llm("The sea", top_p=3.0)
    assert refused.value.param == "top_p"
    with pytest.raises(InvalidParameter) as refused:
        await llm("The sea", grammar="root ::= (")
    assert refused.value.param == "grammar"
    with pytest.raises(ContextLengthExceeded):
        await llm([1] * 5000)
    with pytest.raises(TypeError, match="temprature"):
        await llm("The sea", temprature=1)


async def test_the_low_level_is_awaited_too(llm: AsyncLlama) -> None:
    tokens = llm.tokenize(b"The sea")
    await llm.eval(tokens)
    assert llm.n_tokens == len(tokens)
    assert 0 <= await llm.sample() < llm.n_vocab()
    written = []
    async for token in llm.generate(tokens):
        written.append(token)
        if len(written) == 3:
            break
    assert len(written) == 3
    await llm.reset()


async def test_one_that_is_shared_stays_open(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=512, cache_ram=0, verbose=False) as shared:
        async with AsyncLlama(shared) as awaited:
            await awaited("The sea", max_tokens=1)
        shared("The sea", max_tokens=1)
