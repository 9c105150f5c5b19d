"""``POST /completion`` and ``POST /infill``, as llama-server has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent
from onceread.engine.request import Request as EngineRequest
from onceread.native.params import SamplingParams
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.errors import ApiError, invalid
from onceread.server.event_stream import sse
from onceread.server.generation_fields import capped, moved_reuse
from onceread.server.llama_errors import llama_envelope, llama_errors
from onceread.server.llama_infill import check_fills, infill_tokens
from onceread.server.llama_limits import LimitedAnswering
from onceread.server.llama_prompts import llama_prompt_tokens
from onceread.server.llama_reply import ANY_SEED, LlamaReplies
from onceread.server.llama_samplers import token_biases
from onceread.server.llama_schemas import (
    InfillRequest,
    LlamaCompletion,
    LlamaCompletionRequest,
    LlamaFields,
)
from onceread.server.openapi import takes
from onceread.server.responding import respond
from onceread.server.session_hint import session_of
from onceread.server.settings import Settings
from onceread.server.state import AppState, Serving, state_of
from onceread.server.text_schemas import MAX_REPLIES

router = APIRouter(tags=["llama-server"])

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": LlamaCompletion | list[LlamaCompletion], "content": {"text/event-stream": {}}},
    **llama_errors(400, 401, 413, 415, 500, 503),
}

Prompts = Sequence[tuple[tuple[int, ...], bool]]  # tokens, and whether they came from text


async def create_completion(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """How each prompt goes on, whole or as a stream of server-sent events.

    One prompt with one reply is answered with an object, several of either with a list.
    """
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, LlamaCompletionRequest)
    if len(body.prompt) * body.replies > MAX_REPLIES:
        raise invalid(f"n_cmpl times the number of prompts must be at most {MAX_REPLIES}.", "n_cmpl")

    def prompts() -> Prompts:
        return [(llama_prompt_tokens(prompt, serving), isinstance(prompt, str)) for prompt in body.prompt]

    return await _answer(request, body, state, serving, caller, prompts, "prompt")


for _path in ("/completion", "/completions"):
    router.post(
        _path,
        summary="Continue texts",
        response_model=None,
        responses=_ANSWERS,
        openapi_extra=takes(LlamaCompletionRequest),
        include_in_schema=_path == "/completion",  # the other is the same once more
    )(create_completion)


@router.post(
    "/infill",
    summary="Fill a gap in a text",
    response_model=None,
    responses={**_ANSWERS, **llama_errors(501)},
    openapi_extra=takes(InfillRequest),
)
async def create_infill(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """What stands between two texts, by models that are trained for it; a 501 by others."""
    state = state_of(request)
    serving = state.serving()
    check_fills(serving)
    body = await read_body(request, InfillRequest)

    def prompts() -> Prompts:
        tokens = infill_tokens(
            body.input_prefix,
            body.input_suffix,
            serving,
            extra=body.input_extra or (),
            begun=body.prompt or "",
            max_tokens=capped(body.token_limit, state.settings.max_tokens_limit),
        )
        return [(tokens, True)]

    return await _answer(request, body, state, serving, caller, prompts, "input_prefix")


async def _answer(
    request: Request,
    body: LlamaFields,
    state: AppState,
    serving: Serving,
    caller: Caller,
    prompts: Callable[[], Prompts],
    prompt_param: str,
) -> Response:
    answering = LimitedAnswering(
        serving.engine,
        state.metrics,
        prompt_param,
        n_indent=body.n_indent or 0,
        milliseconds=body.t_max_predict_ms or 0,
    )
    asked: list[EngineRequest] = []

    def prepare() -> list[EngineRequest]:
        namespace, session = caller.namespace(body.cache_salt), session_of(request, body.prompt_cache_key)
        asked.extend(_engine_requests(body, prompts(), serving, state.settings, namespace, session))
        return asked

    replies = LlamaReplies(body, serving)
    return await respond(
        request,
        body,
        answering,
        prepare,
        chunks=lambda: _chunks(replies, asked, answering),
        whole=lambda answers: _whole(replies, asked, answering, answers),
        end=b"",
        failed=_failed,
    )


def _engine_requests(
    body: LlamaFields,
    prompts: Prompts,
    serving: Serving,
    settings: Settings,
    namespace: str,
    session: str | None,
) -> list[EngineRequest]:
    sampling = _sampling(body, serving)
    # The ids of what was written come with the log probabilities, and are to be had in no other way.
    wants_ids = 0 if body.return_tokens else None
    return [
        EngineRequest(
            prompt=tokens,
            sampling=sampling,
            max_tokens=capped(body.token_limit, settings.max_tokens_limit),
            stop=body.stop or (),
            n=body.replies,
            logprobs=body.alternatives or wants_ids,
            namespace=namespace,
            session=session,
            alignable=from_text,
            ignore_eos=bool(body.ignore_eos),
            reuse_moved=moved_reuse(body.reuse_moved, settings),
            least_moved=settings.reuse_moved_min,
            explain=bool(body.explain),
        )
        for tokens, from_text in prompts
    ]


def _sampling(body: LlamaFields, serving: Serving) -> SamplingParams:
    sampling = body.sampling(serving.model.vocab.size)
    return replace(
        sampling,
        order=body.order,
        logit_bias=token_biases(body.logit_bias or (), serving),
        seed=None if sampling.seed == ANY_SEED else sampling.seed,  # clients send back what /props told them
    )


def _whole(
    replies: LlamaReplies,
    asked: Sequence[EngineRequest],
    answering: LimitedAnswering,
    answers: Sequence[Completed],
) -> Any:
    said = [
        replies.final(
            prompt,
            index,
            asked[prompt],
            answer.reasons[index],
            answering.told[prompt, index],
            DoneEvent(answer.usage, explanation=answer.explanation),
            content=text,
            logprobs=answer.logprobs[index],
        )
        for prompt, answer in enumerate(answers)
        for index, text in enumerate(answer.texts)
    ]
    return said[0] if len(said) == 1 else said


async def _chunks(
    replies: LlamaReplies, asked: Sequence[EngineRequest], answering: LimitedAnswering
) -> AsyncIterator[bytes]:
    # A reply's last chunk says what the request cost, which is known when all of its replies have ended.
    finished: dict[int, list[FinishEvent]] = {prompt: [] for prompt in range(len(asked))}
    async for batch in answering.events():
        out = []
        for prompt, event in batch:
            match event:
                case TextEvent():
                    if event.text or event.logprobs:
                        out.append(sse(replies.chunk(prompt, event)))
                case FinishEvent():
                    finished[prompt].append(event)
                case DoneEvent():
                    for end in finished.pop(prompt):
                        told = answering.told[prompt, end.index]
                        final = replies.final(prompt, end.index, asked[prompt], end.reason, told, event)
                        out.append(sse(final))
        if out:
            yield b"".join(out)


def _failed(error: ApiError) -> bytes:
    return sse(llama_envelope(error))
