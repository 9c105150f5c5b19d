"""``POST /v1/chat/completions``, as OpenAI has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent
from onceread.server.answering import Answering, on_thread
from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, read_body
from onceread.server.chat_prompt import dropped_field
from onceread.server.chat_reply import ChoiceWriter
from onceread.server.chat_schemas import ChatCompletion, ChatCompletionRequest
from onceread.server.chat_turn import ChatTurn
from onceread.server.event_stream import sse
from onceread.server.explain import explain_field
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.openapi import errors, takes
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.responding import respond
from onceread.server.session_hint import session_of
from onceread.server.state import Serving, state_of
from onceread.server.usage import approximate_field, timings, usage_body

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
    return await respond(
        request,
        body,
        answering,
        lambda: [turn.request()],
        chunks=lambda: _chunks(body, serving, answering, turn),
        whole=lambda answers: _completion(body, serving, answers[0], turn),
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


def _completion(
    body: ChatCompletionRequest, serving: Serving, answer: Completed, turn: ChatTurn
) -> dict[str, Any]:
    names = TokenNames(serving.model.vocab)
    choices = []
    for index, text in enumerate(answer.texts):
        writer, reason = ChoiceWriter(turn.reader()), answer.reasons[index]
        writer.write(text)
        writer.finish(reason)
        choices.append(
            {
                "index": index,
                "message": writer.message,
                "logprobs": _logprobs(chat_logprobs(answer.logprobs[index], names))
                if body.logprobs
                else None,
                "finish_reason": writer.finish_reason(reason),
            }
        )
    return {
        **reply_head("chatcmpl", "chat.completion", serving.name),
        "choices": choices,
        "usage": usage_body([answer.usage]).model_dump(),
        "timings": timings([answer.usage]).model_dump(),
        **approximate_field([answer.usage]),
        **explain_field(body.explain, [answer.explanation]),
        **dropped_field(turn.may_drop, turn.dropped, answer.dropped),
    }


async def _chunks(
    body: ChatCompletionRequest, serving: Serving, answering: Answering, turn: ChatTurn
) -> AsyncIterator[bytes]:
    head: dict[str, Any] = reply_head("chatcmpl", "chat.completion.chunk", serving.name)
    if body.include_usage:
        head["usage"] = None  # in every chunk but the last, says the API
    names = TokenNames(serving.model.vocab)

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice]}

    yield b"".join(
        [sse(chunk(i, {"role": "assistant", "content": "", "refusal": None})) for i in range(body.n or 1)]
    )
    writers = [ChoiceWriter(turn.reader()) for _ in range(body.n or 1)]
    last: dict[str, Any] | None = None  # a choice's end, held back: the request's last chunk has more to say
    async for batch in answering.events():
        out = []
        for _, event in batch:
            match event:
                case TextEvent():
                    entries = _logprobs(chat_logprobs(event.logprobs, names)) if body.logprobs else None
                    deltas = writers[event.index].write(event.text)
                    if not deltas and event.logprobs:
                        deltas = [{"content": ""}]
                    for delta in deltas:
                        out.append(sse(chunk(event.index, delta, entries)))
                        entries = None if entries is None else _logprobs([])
                case FinishEvent():
                    writer = writers[event.index]
                    out += [sse(chunk(event.index, delta)) for delta in writer.finish(event.reason)]
                    if last is not None:
                        out.append(sse(last))
                    last = chunk(event.index, {}, None, writer.finish_reason(event.reason))
                case DoneEvent():
                    pass
        if out:
            yield b"".join(out)
    more = {
        **approximate_field(answering.usages),
        **explain_field(body.explain, answering.explanations),
        **dropped_field(turn.may_drop, turn.dropped, answering.dropped),
    }
    yield stream_end(head, last, answering.usages, body.include_usage, more)


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
