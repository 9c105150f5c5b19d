"""``/tokenize``, ``/detokenize`` and ``/apply-template``, as llama-server has them."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, FailFast, Field, PlainValidator, WithJsonSchema

from onceread.server.auth import Caller, authenticate
from onceread.server.body import RequestModel, ignored_warning, read_body
from onceread.server.chat_prompt import rendered_chat
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.llama_errors import llama_errors
from onceread.server.llama_prompts import PIECES, LlamaPrompt, checked, pieces
from onceread.server.openapi import takes
from onceread.server.state import Serving, state_of

router = APIRouter(tags=["llama-server"])

_ERRORS = llama_errors(400, 401, 413, 415, 500, 503)


def _content(value: object) -> LlamaPrompt:
    return [] if value == [] else pieces(value)


class TokenizeRequest(RequestModel):
    """A text to split. In lists of texts and token ids the ids stay."""

    content: Annotated[
        LlamaPrompt,
        PlainValidator(_content),
        WithJsonSchema({"anyOf": [*PIECES["anyOf"], {"type": "array", "maxItems": 0}]}),
    ]
    add_special: bool | None = Field(None, description="Add what the model wants around a text, such as BOS.")
    parse_special: bool | None = Field(
        None, description="Control tokens may be written out in the text (default: true)."
    )
    with_pieces: bool | None = Field(None, description="Give each token's text, too.")


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int]  # bytes where they are no text


class Tokenized(BaseModel):
    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(RequestModel):
    """Tokens to show as text. Control tokens come out as the vocabulary writes them."""

    tokens: Annotated[list[int], FailFast()]


class Detokenized(BaseModel):
    content: str


class Templated(BaseModel):
    prompt: str


@router.post(
    "/tokenize",
    summary="Split a text into tokens",
    response_model=Tokenized,
    responses=_ERRORS,
    openapi_extra=takes(TokenizeRequest),
    dependencies=[Depends(authenticate)],
)
async def tokenize(request: Request) -> JSONResponse:
    """The tokens of a text, as ``/completion`` would read them with ``add_special``."""
    serving = state_of(request).serving()
    body = await read_body(request, TokenizeRequest)

    def answer() -> JSONResponse:  # a megabyte of it takes a while to write, too
        return JSONResponse({"tokens": _tokenized(body, serving)}, headers=ignored_warning(body))

    return await to_thread.run_sync(answer)


@router.post(
    "/detokenize",
    summary="Tokens as text",
    response_model=Detokenized,
    responses=_ERRORS,
    openapi_extra=takes(DetokenizeRequest),
    dependencies=[Depends(authenticate)],
)
async def detokenize(request: Request) -> JSONResponse:
    """The text of tokens. What is no whole character becomes a replacement character."""
    serving = state_of(request).serving()
    body = await read_body(request, DetokenizeRequest)

    def shown() -> str:
        tokens = [checked(token, serving, "tokens") for token in body.tokens]
        return serving.model.vocab.shown(tokens).decode(errors="replace")

    return JSONResponse({"content": await to_thread.run_sync(shown)}, headers=ignored_warning(body))


@router.post(
    "/apply-template",
    summary="A conversation as the model would see it",
    response_model=Templated,
    responses=_ERRORS,
    openapi_extra=takes(ChatCompletionRequest),
)
async def apply_template(request: Request, caller: Caller = Depends(authenticate)) -> JSONResponse:  # noqa: B008
    """The prompt that ``/v1/chat/completions`` makes of the same body, as text, for ``/completion``.

    What clients typed in the messages can no longer be told from control tokens there.
    """
    serving = state_of(request).serving()
    body = await read_body(request, ChatCompletionRequest)
    rendered = await to_thread.run_sync(rendered_chat, body, serving, caller.namespace(body.cache_salt))
    return JSONResponse({"prompt": rendered.text}, headers=ignored_warning(body))


def _tokenized(body: TokenizeRequest, serving: Serving) -> list[Any]:
    tokens = _tokens(body, serving)
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _piece(token, serving)} for token in tokens]


def _tokens(body: TokenizeRequest, serving: Serving) -> list[int]:
    vocab, tokenizer = serving.model.vocab, serving.tokenizer
    content = [body.content] if isinstance(body.content, str) else body.content
    tokens: list[int] = []
    for i, piece in enumerate(content):
        around = bool(body.add_special) and i == 0
        if isinstance(piece, int):
            tokens.append(checked(piece, serving, "content"))
        elif body.parse_special is False:
            tokens += vocab.tokenize(piece, add_special=around, parse_special=False)
        elif around and piece:
            tokens += tokenizer.raw(piece)
        elif around:
            tokens += vocab.tokenize("", add_special=True, parse_special=False)
        else:
            tokens += tokenizer.written(piece)
    return tokens


def _piece(token: int, serving: Serving) -> str | list[int]:
    shown = serving.model.vocab.shown([token])
    try:
        return shown.decode()
    except UnicodeDecodeError:
        return list(shown)
