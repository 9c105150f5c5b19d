"""``POST /v1/chat/completions``, as OpenAI has it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from onceread.server.answering import Answering, on_thread
from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, read_body
from onceread.server.chat_answer import ChatAnswer
from onceread.server.chat_schemas import ChatCompletion, ChatCompletionRequest
from onceread.server.chat_turn import ChatTurn
from onceread.server.openapi import errors, takes
from onceread.server.responding import respond, written
from onceread.server.session_hint import session_of
from onceread.server.state import state_of

router = APIRouter(prefix="/v1", tags=["OpenAI"])

_PROMPT = "messages"


@router.post(
    "/chat/completions",
    summary="Continue a conversation",
    response_model=None,
    responses={
        200: {"model": ChatCompletion, "content": {"text/event-stream": {}}},
        **errors(400, 401, 413, 415, 500, 503),
    },
    openapi_extra=takes(ChatCompletionRequest),
)
async def create_chat_completion(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """The assistant's next message, whole or as a stream of server-sent events."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, ChatCompletionRequest)
    answering = Answering(serving.engine, state.metrics, _PROMPT)
    session = session_of(request, body.prompt_cache_key)
    turn = ChatTurn(body, serving, caller.namespace(body.cache_salt), state.settings, session)
    answer = ChatAnswer(body, serving, turn)
    return await respond(
        request,
        body,
        answering,
        lambda: [turn.request()],
        chunks=lambda: written(answering, answer.begin, lambda _, event: answer.take(event), answer.end),
        whole=lambda answers: answer.whole(answers[0]),
    )


class InputTokens(BaseModel):
    """What a request's prompt comes to."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post(
    "/chat/completions/input_tokens",
    summary="Count a conversation's tokens",
    response_model=InputTokens,
    responses=errors(400, 401, 413, 415, 500, 503),
    openapi_extra=takes(ChatCompletionRequest),
)
async def count_input_tokens(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """The tokens of the prompt that this body would make. Nothing is read."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, ChatCompletionRequest)
    turn = ChatTurn(body, serving, caller.namespace(body.cache_salt), state.settings)
    counted = InputTokens(input_tokens=await on_thread(turn.count, _PROMPT))
    return JSONResponse(counted.model_dump(), headers=ignored_warning(body))
