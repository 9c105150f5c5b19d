"""Embeddings by OpenAI's own client, sync and async, and by clients that are built on it or like it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from tests.server.live import Live

from onceread.native.library import lib

pytestmark = pytest.mark.model

TEXTS = [
    "The lighthouse keeper lit his lamp.",
    "A lamp was lit by the keeper.",
    "def add(a, b): return a + b",
]
SAME = 0.999


@pytest.fixture
def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0)


@pytest.fixture(scope="module")
def expected(live: Live) -> list[list[float]]:
    """What the high-level binding makes of them, by itself."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(live.model.path),
        embedding=True,
        pooling_type=lib.LLAMA_POOLING_TYPE_MEAN,
        n_ctx=256,
        n_threads=2,
        verbose=False,
    )
    found = [llama.embed(text, normalize=True) for text in TEXTS]  # one at a time
    llama.close()
    return found


def alike(one: list[float], other: list[float]) -> float:
    return float(np.dot(one, other))


def test_the_vectors_are_those_of_the_binding(client: OpenAI, expected: list[list[float]]) -> None:
    answer = client.embeddings.create(
        model="any-name", input=TEXTS
    )  # as base64, if one asks the client for nothing
    found = [item.embedding for item in answer.data]
    assert [alike(a, b) > SAME for a, b in zip(found, expected, strict=True)] == [True] * 3
    assert max(alike(found[0], expected[1]), alike(found[0], expected[2])) < SAME
    assert alike(found[0], found[1]) > alike(found[0], found[2])
    assert answer.model == "SmolLM2-135M-Instruct.Q4_1"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)


def test_floats_and_base64_agree(client: OpenAI) -> None:
    plain = client.embeddings.create(model="m", input=TEXTS[0], encoding_format="float").data[0].embedding
    packed = client.embeddings.create(model="m", input=TEXTS[0]).data[0].embedding
    assert np.array_equal(np.array(plain, np.float32), np.array(packed, np.float32))


def test_several_at_once(live: Live, client: OpenAI) -> None:
    one = client.embeddings.create(model="m", input=TEXTS[0]).data[0].embedding

    async def ask() -> list[list[float]]:
        async with AsyncOpenAI(base_url=live.url + "/v1", api_key="sk-anna", max_retries=0) as client:
            calls = [client.embeddings.create(model="m", input=TEXTS[0]) for _ in range(6)]
            return [answer.data[0].embedding for answer in await asyncio.gather(*calls)]

    assert all(alike(one, other) > SAME for other in asyncio.run(ask()))


def test_beside_a_chat(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
    )
    next(iter(stream))
    assert client.embeddings.create(model="m", input="a lamp").data
    assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")


def test_too_long_and_too_few_dimensions(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model="m", input="lamp " * 600)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body["n_ctx"] == 512  # type: ignore[index]
    with pytest.raises(BadRequestError, match="dimensions: this model's embeddings have 576"):
        client.embeddings.create(model="m", input="lamp", dimensions=256)


def test_langchain(live: Live, client: OpenAI) -> None:
    openai = pytest.importorskip("langchain_openai")
    # Otherwise it sends token ids of OpenAI's tokenizer, which mean nothing to any other model.
    embeddings = openai.OpenAIEmbeddings(
        model="m", base_url=live.url + "/v1", api_key="sk-anna", check_embedding_ctx_length=False
    )
    found = embeddings.embed_documents(TEXTS[:2])
    direct = [item.embedding for item in client.embeddings.create(model="m", input=TEXTS[:2]).data]
    assert all(alike(a, b) > SAME for a, b in zip(found, direct, strict=True))
    assert alike(embeddings.embed_query(TEXTS[0]), direct[0]) > SAME


def test_litellm(live: Live, client: OpenAI) -> None:
    litellm = pytest.importorskip("litellm")
    answer = litellm.embedding(
        model="openai/any", input=TEXTS[:1], api_base=live.url + "/v1", api_key="sk-anna"
    )
    direct = client.embeddings.create(model="m", input=TEXTS[0]).data[0].embedding
    assert alike(answer.data[0]["embedding"], direct) > SAME
