"""``POST /v1/embeddings``, as OpenAI has it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.chat.prompt import PromptTokenizer
from onceread.engine.embeddings import Embedded, EmbeddingEngine
from onceread.engine.pooling import normalized
from onceread.native.embedding import Vector
from onceread.native.vocabulary import Vocabulary
from onceread.server.answering import until_disconnect
from onceread.server.auth import authenticate
from onceread.server.body import ignored_warning, read_body
from onceread.server.embedding_schemas import EmbeddingList, EmbeddingRequest, Input
from onceread.server.errors import ApiError, invalid, known
from onceread.server.openapi import errors, takes
from onceread.server.state import Serving, state_of

router = APIRouter(prefix="/v1", tags=["OpenAI"], dependencies=[Depends(authenticate)])

Tokens = Sequence[int]


@router.post(
    "/embeddings",
    summary="Embed texts",
    response_model=None,
    responses={200: {"model": EmbeddingList}, **errors(400, 401, 413, 415, 500, 501, 503)},
    openapi_extra=takes(EmbeddingRequest),
)
async def create_embeddings(request: Request) -> Response:
    """A vector of length 1 for each input. Nothing of them is kept."""
    serving = state_of(request).serving()
    engine = embedding_engine(serving)
    body = await read_body(request, EmbeddingRequest)

    def prepare() -> list[Tokens]:
        _check_dimensions(body.dimensions, engine)
        return tokenized(body.input, engine)

    inputs, vectors = await until_disconnect(request, embed(engine, prepare, "input"))
    write = partial(_answer, body, serving.embedding_name, inputs, vectors)
    content = await to_thread.run_sync(write)
    return Response(content, media_type="application/json", headers=ignored_warning(body))


def embedding_engine(serving: Serving) -> EmbeddingEngine:
    """What embeds. Raises a 501 where the app was made without."""
    if serving.embeddings is None:
        message = "This server computes no embeddings."
        raise ApiError(501, message, code="unsupported_endpoint")
    return serving.embeddings


async def embed(
    engine: EmbeddingEngine, prepare: Callable[[], list[Tokens]], param: str
) -> tuple[list[Tokens], Embedded]:
    """What ``prepare``, on a thread, made of the request, and its vectors. Whoever is cancelled stops costing.

    Raises ApiError, or what is a bug of ours; ``param`` is what the inputs came in.
    """
    inputs: list[Tokens] = []
    futures: list[Future[Embedded]] = []
    over = False

    def submit() -> None:
        inputs.extend(prepare())
        futures.append(engine.submit(inputs))
        if over:  # the client went while this thread was busy
            futures[0].cancel()

    try:
        await to_thread.run_sync(submit)
        return inputs, await asyncio.wrap_future(futures[0])
    except Exception as error:
        raise known(error, param) or error from error
    finally:
        over = True
        for future in futures:
            future.cancel()  # does nothing once it is done


def tokenized(inputs: Sequence[Input], engine: EmbeddingEngine) -> list[Tokens]:
    """Inputs as tokens, texts with what the model wants around them; written-out control tokens count as such."""
    tokenizer = _tokenizer(engine.model.vocab)
    return [tokenizer.raw(text) if isinstance(text, str) else text for text in inputs]


@lru_cache(maxsize=2)
def _tokenizer(vocab: Vocabulary) -> PromptTokenizer:
    return PromptTokenizer(vocab)


def _check_dimensions(asked: int | None, engine: EmbeddingEngine) -> None:
    has = engine.plan().dimensions
    if asked is not None and asked != has:
        message = f"dimensions: this model's embeddings have {has}, and they can't be shortened."
        raise invalid(message, "dimensions", "unsupported_value")


def _answer(body: EmbeddingRequest, model: str, inputs: list[Tokens], vectors: Embedded) -> bytes:
    # One by one: a json.dumps of them all would hold up every other thread for as long as it takes.
    write = _base64 if body.encoding_format == "base64" else _numbers
    data = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{write(normalized(vector))}}}'
        for index, vector in enumerate(vectors)
    )
    n = sum(map(len, inputs))
    usage = f'{{"prompt_tokens":{n},"total_tokens":{n}}}'
    return f'{{"object":"list","data":[{data}],"model":{json.dumps(model)},"usage":{usage}}}'.encode()


def _numbers(vector: Vector) -> str:
    return json.dumps(vector.tolist(), separators=(",", ":"))


def _base64(vector: Vector) -> str:
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'
