"""``POST /v1/chat/completions``, as OpenAI has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.chat_prompt import chat_prompt, dropped_field
from onceread.server.chat_schemas import ChatCompletion, ChatCompletionRequest
from onceread.server.event_stream import sse
from onceread.server.explain import explain_field
from onceread.server.generation_fields import capped, moved_reuse
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.openapi import errors, takes
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.responding import respond
from onceread.server.settings import Settings
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

    settings = state.settings
    made = _Made(may_drop=(body.overflow or settings.overflow) == "shift")
    return await respond(
        request,
        body,
        answering,
        lambda: [_engine_request(body, serving, caller, settings, made)],
        chunks=lambda: _chunks(body, serving, answering, made),
        whole=lambda answers: _completion(body, serving, answers[0], made),
    )


@dataclass(slots=True)
class _Made:
    """What became of the conversation on its way to the engine."""

    may_drop: bool
    dropped: tuple[int, ...] = ()


def _engine_request(
    body: ChatCompletionRequest, serving: Serving, caller: Caller, settings: Settings, made: _Made
) -> EngineRequest:
    max_tokens = capped(body.token_limit, settings.max_tokens_limit)
    prompt = chat_prompt(body, serving, may_drop=made.may_drop, max_tokens=max_tokens)
    made.dropped = prompt.dropped
    return EngineRequest(
        prompt=prompt.tokens,
        sampling=body.sampling(serving.model.vocab.size),
        max_tokens=max_tokens,
        stop=body.stop or (),
        n=body.n or 1,
        logprobs=body.alternatives,
        namespace=caller.namespace(body.cache_salt),
        alignable=True,
        ignore_eos=bool(body.ignore_eos),
        reuse_moved=moved_reuse(body.reuse_moved, settings),
        least_moved=settings.reuse_moved_min,
        shifts=body.reuse_moved is not False,
        shorter=prompt.shorter,
        explain=bool(body.explain),
    )


def _completion(
    body: ChatCompletionRequest, serving: Serving, answer: Completed, made: _Made
) -> dict[str, Any]:
    names = TokenNames(serving.model.vocab)
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _logprobs(chat_logprobs(answer.logprobs[index], names)) if body.logprobs else None,
            "finish_reason": answer.reasons[index],
        }
        for index, text in enumerate(answer.texts)
    ]
    return {
        **reply_head("chatcmpl", "chat.completion", serving.name),
        "choices": choices,
        "usage": usage_body([answer.usage]).model_dump(),
        "timings": timings([answer.usage]).model_dump(),
        **approximate_field([answer.usage]),
        **explain_field(body.explain, [answer.explanation]),
        **dropped_field(made.may_drop, made.dropped, answer.dropped),
    }


async def _chunks(
    body: ChatCompletionRequest, serving: Serving, answering: Answering, made: _Made
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
    last: dict[str, Any] | None = None  # a choice's end, held back: the request's last chunk has more to say
    async for batch in answering.events():
        out = []
        for _, event in batch:
            match event:
                case TextEvent():
                    entries = _logprobs(chat_logprobs(event.logprobs, names)) if body.logprobs else None
                    if event.text or event.logprobs:
                        out.append(sse(chunk(event.index, {"content": event.text}, entries)))
                case FinishEvent():
                    if last is not None:
                        out.append(sse(last))
                    last = chunk(event.index, {}, None, event.reason)
                case DoneEvent():
                    pass
        if out:
            yield b"".join(out)
    more = {
        **approximate_field(answering.usages),
        **explain_field(body.explain, answering.explanations),
        **dropped_field(made.may_drop, made.dropped, answering.dropped),
    }
    yield stream_end(head, last, answering.usages, body.include_usage, more)


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
