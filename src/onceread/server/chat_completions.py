"""``POST /v1/chat/completions``, as OpenAI has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.chat_schemas import ChatCompletion, ChatCompletionRequest
from onceread.server.event_stream import sse
from onceread.server.explain import explain_field
from onceread.server.generation_fields import capped
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.openapi import errors, takes
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.responding import respond
from onceread.server.state import Serving, state_of
from onceread.server.usage import timings, usage_body

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

    limit = state.settings.max_tokens_limit
    return await respond(
        request,
        body,
        answering,
        lambda: [_engine_request(body, serving, caller, limit)],
        chunks=lambda: _chunks(body, serving, answering),
        whole=lambda answers: _completion(body, serving, answers[0]),
    )


def _engine_request(
    body: ChatCompletionRequest, serving: Serving, caller: Caller, limit: int | None
) -> EngineRequest:
    rendered = serving.template.render(
        [message.for_template() for message in body.messages],
        add_generation_prompt=body.opens_turn,
        continue_final_message=bool(body.continue_final_message),
        variables=body.chat_template_kwargs,
    )
    return EngineRequest(
        prompt=serving.tokenizer.chat(rendered),
        sampling=body.sampling(serving.model.vocab.size),
        max_tokens=capped(body.token_limit, limit),
        stop=body.stop or (),
        n=body.n or 1,
        logprobs=body.alternatives,
        namespace=caller.namespace(body.cache_salt),
        alignable=True,
        ignore_eos=bool(body.ignore_eos),
        explain=bool(body.explain),
    )


def _completion(body: ChatCompletionRequest, serving: Serving, answer: Completed) -> dict[str, Any]:
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
        **explain_field(body.explain, [answer.explanation]),
    }


async def _chunks(
    body: ChatCompletionRequest, serving: Serving, answering: Answering
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
    more = explain_field(body.explain, answering.explanations)
    yield stream_end(head, last, answering.usages, body.include_usage, more)


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
