"""``POST /embedding``, as llama-server has it; ``/embeddings`` is the same."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, RootModel

from onceread.engine.embeddings import Embedded
from onceread.engine.pooling import normalized
from onceread.native.embedding import Vector
from onceread.server.answering import until_disconnect
from onceread.server.auth import authenticate
from onceread.server.body import RequestModel, ignored_warning, read_body
from onceread.server.embedding_schemas import Inputs
from onceread.server.embeddings import embed, embedding_engine, tokenized
from onceread.server.llama_errors import llama_errors
from onceread.server.openapi import takes
from onceread.server.state import state_of

router = APIRouter(tags=["llama-server"], dependencies=[Depends(authenticate)])

_INT16 = 32760.0  # what llama.cpp scales the largest number to


class LlamaEmbeddingRequest(RequestModel):
    """Texts, or token ids, each to become a vector."""

    content: Inputs
    embd_normalize: Annotated[int, Field(ge=-1, le=100)] | None = Field(
        None, description="-1 none, 0 largest number to 32760, 2 (the default) length 1, p the p-norm to 1."
    )


class LlamaEmbedding(BaseModel):
    index: int
    embedding: list[list[float]]  # one vector: pooling is always done


class LlamaEmbeddings(RootModel[list[LlamaEmbedding]]):
    """In the order of the inputs."""


_ROUTE = {
    "summary": "Embed texts",
    "response_model": None,
    "responses": {200: {"model": LlamaEmbeddings}, **llama_errors(400, 401, 413, 415, 500, 501, 503)},
    "openapi_extra": takes(LlamaEmbeddingRequest),
}


@router.post("/embedding", **_ROUTE)  # type: ignore[arg-type]
@router.post("/embeddings", **_ROUTE)  # type: ignore[arg-type]
async def create_llama_embeddings(request: Request) -> Response:
    """A vector for each input. Nothing of them is kept."""
    engine = embedding_engine(state_of(request).serving())
    body = await read_body(request, LlamaEmbeddingRequest)
    work = embed(engine, lambda: tokenized(body.content, engine), "content")
    _, vectors = await until_disconnect(request, work)
    norm = 2 if body.embd_normalize is None else body.embd_normalize
    content = await to_thread.run_sync(partial(_answer, vectors, norm))
    return Response(content, media_type="application/json", headers=ignored_warning(body))


def _answer(vectors: Embedded, norm: int) -> bytes:
    items = (
        f'{{"index":{index},"embedding":[{json.dumps(scaled(vector, norm).tolist())}]}}'
        for index, vector in enumerate(vectors)
    )
    return f"[{','.join(items)}]".encode()


def scaled(vector: Vector, norm: int) -> Vector:
    """The vector as ``embd_normalize`` wants it."""
    if norm < 0:
        return vector
    if norm == 2:
        return normalized(vector)
    wide = np.abs(vector.astype(np.float64))
    largest = float(wide.max())
    if largest == 0:
        return vector
    if norm == 0:
        return (vector * (_INT16 / largest)).astype(np.float32)
    shares = wide / largest  # so that no power is too large
    length: float = largest * float((shares**norm).sum()) ** (1 / norm)
    return (vector / length).astype(np.float32)
