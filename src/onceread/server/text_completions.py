"""``POST /v1/completions``, as OpenAI has it: raw prompts, as text or as token ids."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.errors import invalid
from onceread.server.generation_fields import capped, moved_reuse
from onceread.server.openapi import errors, takes
from onceread.server.responding import respond, written
from onceread.server.session_hint import session_of
from onceread.server.settings import Settings
from onceread.server.state import Serving, state_of
from onceread.server.text_answer import TextAnswer
from onceread.server.text_schemas import Completion, CompletionRequest, Prompt

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
    answer = TextAnswer(body, serving)
    return await respond(
        request,
        body,
        answering,
        lambda: engine_requests(body, serving, settings, namespace, session),
        chunks=lambda: written(answering, answer.begin, answer.take, answer.end),
        whole=answer.whole,
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
