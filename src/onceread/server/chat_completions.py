"""``POST /v1/chat/completions``, as OpenAI has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent
from onceread.engine.request import Request as EngineRequest
from onceread.native.params import Constraint, SamplingParams
from onceread.server.answering import Answering
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.chat_prompt import ChatPrompt, chat_prompt, dropped_field
from onceread.server.chat_reply import ChoiceWriter
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
    made = _Made(body, serving, caller.namespace(body.cache_salt), settings)
    return await respond(
        request,
        body,
        answering,
        lambda: [made.request()],
        chunks=lambda: _chunks(body, serving, answering, made),
        whole=lambda answers: _completion(body, serving, answers[0], made),
    )


class _Made:
    """What becomes of the conversation on its way to the engine, and of the replies on their way back."""

    def __init__(
        self, body: ChatCompletionRequest, serving: Serving, namespace: str, settings: Settings
    ) -> None:
        self.may_drop = (body.overflow or settings.overflow) == "shift"
        self.dropped: tuple[int, ...] = ()
        self._body = body
        self._serving = serving
        self._namespace = namespace
        self._settings = settings
        self._prompt: ChatPrompt | None = None

    def request(self) -> EngineRequest:
        """What the engine is asked. Raises ApiError, ChatError."""
        body, serving, settings = self._body, self._serving, self._settings
        max_tokens = capped(body.token_limit, settings.max_tokens_limit)
        prompt = chat_prompt(body, serving, self._namespace, may_drop=self.may_drop, max_tokens=max_tokens)
        self._prompt = prompt
        self.dropped = prompt.dropped
        return EngineRequest(
            prompt=prompt.tokens,
            sampling=self._sampling(prompt),
            max_tokens=max_tokens,
            stop=body.stop or (),
            n=body.n or 1,
            logprobs=body.alternatives,
            namespace=self._namespace,
            alignable=True,
            ignore_eos=bool(body.ignore_eos),
            spelled=serving.style.spelled(
                serving.model.vocab.control_tokens, tools=bool(body.callable_tools)
            ),
            reuse_moved=moved_reuse(body.reuse_moved, settings),
            least_moved=settings.reuse_moved_min,
            shifts=body.reuse_moved is not False,
            shorter=prompt.shorter,
            explain=bool(body.explain),
        )

    def writer(self) -> ChoiceWriter:
        """For one choice, once the request is made."""
        body, style, prompt = self._body, self._serving.style, self._prompt
        assert prompt is not None
        reader = style.reader(
            [tool.function.name for tool in body.callable_tools],
            many=body.parallel_tool_calls is not False,
            splits_reasoning=body.reasoning_format != "none",
            thinks=prompt.thinks,
        )
        begun = prompt.forced.prompt if prompt.forced else ""
        short = style.tools.short_ids
        return ChoiceWriter(reader, self._serving.issued, self._namespace, short_ids=short, begun=begun)

    def _sampling(self, prompt: ChatPrompt) -> SamplingParams:
        vocab = self._serving.model.vocab
        sampling = self._body.sampling(vocab.size)
        if prompt.forced is not None:
            return replace(sampling, constraint=Constraint("gbnf", prompt.forced.grammar, "tool_choice"))
        if self._body.tools and self._body.tool_choice == "none":
            # The tools stay in the prompt, so that what was read of them counts; but there is to be no call.
            mark = self._serving.tokenizer.written(self._serving.style.tools.opens)
            if len(mark) == 1:
                return replace(sampling, logit_bias=(*sampling.logit_bias, (mark[0], float("-inf"))))
        return sampling


def _completion(
    body: ChatCompletionRequest, serving: Serving, answer: Completed, made: _Made
) -> dict[str, Any]:
    names = TokenNames(serving.model.vocab)
    choices = []
    for index, text in enumerate(answer.texts):
        writer, reason = made.writer(), answer.reasons[index]
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
    writers = [made.writer() for _ in range(body.n or 1)]
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
        **dropped_field(made.may_drop, made.dropped, answering.dropped),
    }
    yield stream_end(head, last, answering.usages, body.include_usage, more)


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
