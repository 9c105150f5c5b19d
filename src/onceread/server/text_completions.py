"""``POST /v1/completions``, as OpenAI has it: raw prompts, as text or as token ids."""

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
from onceread.server.errors import invalid
from onceread.server.event_stream import sse
from onceread.server.explain import explain_field
from onceread.server.generation_fields import capped, moved_reuse
from onceread.server.logprobs import TextLogprobsWriter, TokenNames
from onceread.server.openapi import errors, takes
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.responding import respond
from onceread.server.session_hint import session_of
from onceread.server.settings import Settings
from onceread.server.state import Serving, state_of
from onceread.server.text_schemas import Completion, CompletionRequest, Prompt
from onceread.server.usage import approximate_field, timings, usage_body

router = APIRouter(prefix="/v1", tags=["OpenAI"])

_PROMPT = "prompt"


@router.post(
    "/completions",
    summary="Continue texts",
    response_model=None,
    responses={
        200: {"model": Completion, "content": {"text/event-stream": {}}},
        **errors(400, 401, 413, 415, 500, 503),
    },
    openapi_extra=takes(CompletionRequest),
)
async def create_completion(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """How each prompt goes on, whole or as a stream of server-sent events.

    The replies to the first prompt come first: prompt ``p``'s reply ``i`` has the index ``p * n + i``.
    """
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, CompletionRequest)
    answering = Answering(serving.engine, state.metrics, _PROMPT)

    settings, namespace = state.settings, caller.namespace(body.cache_salt)
    session = session_of(request, body.prompt_cache_key)
    return await respond(
        request,
        body,
        answering,
        lambda: engine_requests(body, serving, settings, namespace, session),
        chunks=lambda: _chunks(body, serving, answering),
        whole=lambda answers: _completion(body, serving, answers),
    )


def engine_requests(
    body: CompletionRequest, serving: Serving, settings: Settings, namespace: str, session: str | None
) -> list[EngineRequest]:
    """What the engine is asked, one request for each prompt. Raises ApiError, ChatError."""
    sampling = body.sampling(serving.model.vocab.size)
    return [
        EngineRequest(
            prompt=prompt_tokens(prompt, serving),
            sampling=sampling,
            max_tokens=capped(body.max_tokens, settings.max_tokens_limit),
            stop=body.stop or (),
            n=body.n or 1,
            logprobs=body.logprobs,
            namespace=namespace,
            session=session,
            alignable=isinstance(prompt, str),  # token ids are taken to the letter
            ignore_eos=bool(body.ignore_eos),
            reuse_moved=moved_reuse(body.reuse_moved, settings),
            least_moved=settings.reuse_moved_min,
            explain=bool(body.explain),
        )
        for prompt in body.prompt
    ]


def prompt_tokens(prompt: Prompt, serving: Serving) -> tuple[int, ...]:
    """A raw prompt as tokens. Raises ApiError for token ids that the model does not have."""
    if isinstance(prompt, str):
        return serving.tokenizer.raw(prompt)
    size = serving.model.vocab.size
    for token in prompt:
        if not 0 <= token < size:
            shown = token if abs(token) < 10**12 else "a huge number"
            raise invalid(f"prompt: {shown} is not a token id of this model (0 to {size - 1}).", _PROMPT)
    return tuple(prompt)


def _echo(body: CompletionRequest, serving: Serving) -> list[str]:
    """What each prompt's replies begin with."""
    if not body.echo:
        return [""] * len(body.prompt)
    return [
        prompt if isinstance(prompt, str) else serving.model.vocab.detokenize(prompt).decode(errors="replace")
        for prompt in body.prompt
    ]


def _completion(body: CompletionRequest, serving: Serving, answers: list[Completed]) -> dict[str, Any]:
    names = TokenNames(serving.model.vocab)
    choices: list[dict[str, Any]] = []
    for echo, answer in zip(_echo(body, serving), answers, strict=True):
        for i, text in enumerate(answer.texts):
            logprobs = None
            if body.logprobs is not None:
                logprobs = TextLogprobsWriter(names).write(answer.logprobs[i])
            choices.append(
                {
                    "index": len(choices),
                    "text": echo + text,
                    "logprobs": logprobs,
                    "finish_reason": answer.reasons[i],
                }
            )
    usages = [answer.usage for answer in answers]
    return {
        **reply_head("cmpl", "text_completion", serving.name),
        "choices": choices,
        "usage": usage_body(usages).model_dump(),
        "timings": timings(usages).model_dump(),
        **approximate_field(usages),
        **explain_field(body.explain, [answer.explanation for answer in answers]),
    }


async def _chunks(body: CompletionRequest, serving: Serving, answering: Answering) -> AsyncIterator[bytes]:
    head: dict[str, Any] = reply_head("cmpl", "text_completion", serving.name)
    if body.include_usage:
        head["usage"] = None  # in every chunk but the last, says the API
    n = body.n or 1
    names = TokenNames(serving.model.vocab)
    writers = [TextLogprobsWriter(names) for _ in range(len(body.prompt) * n)]

    def chunk(index: int, text: str, logprobs: Any = None, reason: str | None = None) -> Any:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice]}

    if body.echo:
        echoes = _echo(body, serving)
        yield b"".join([sse(chunk(i, echoes[i // n])) for i in range(len(writers))])
    last: dict[str, Any] | None = None  # a choice's end, held back: the request's last chunk has more to say
    async for batch in answering.events():
        out = []
        for prompt, event in batch:
            match event:
                case TextEvent():
                    index = prompt * n + event.index
                    logprobs = None if body.logprobs is None else writers[index].write(event.logprobs)
                    if event.text or event.logprobs:
                        out.append(sse(chunk(index, event.text, logprobs)))
                case FinishEvent():
                    if last is not None:
                        out.append(sse(last))
                    last = chunk(prompt * n + event.index, "", None, event.reason)
                case DoneEvent():
                    pass
        if out:
            yield b"".join(out)
    more = {**approximate_field(answering.usages), **explain_field(body.explain, answering.explanations)}
    yield stream_end(head, last, answering.usages, body.include_usage, more)
