"""``POST /v1/responses`` and ``POST /v1/responses/input_tokens``, as OpenAI has them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from onceread.engine.request import Completed, DoneEvent, Explanation, FinishEvent, TextEvent, Usage
from onceread.server.answering import Answering, on_thread
from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, listed, read_body, translated
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.chat_turn import ChatTurn
from onceread.server.errors import ApiError
from onceread.server.event_stream import sse
from onceread.server.explain import explain_field
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.openapi import errors, takes
from onceread.server.responding import respond
from onceread.server.responses_bodies import InputTokens, ResponseBody, response_head, response_usage
from onceread.server.responses_chat import chat_of, renamed
from onceread.server.responses_history import History, history_of, stored
from onceread.server.responses_items import new_id
from onceread.server.responses_schemas import ResponsesRequest
from onceread.server.responses_store import ResponseStore, Turn
from onceread.server.responses_writer import ResponseWriter, StreamEvent
from onceread.server.session_hint import session_of
from onceread.server.state import Serving, state_of
from onceread.server.usage import approximate_field, timings

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["OpenAI"])

_PROMPT = "input"
_NOT_STORED = "the response could not be stored"


@router.post(
    "/responses",
    summary="Go on with a conversation",
    response_model=None,
    responses={
        200: {"model": ResponseBody, "content": {"text/event-stream": {}}},
        **errors(400, 401, 404, 413, 415, 500, 503),
    },
    openapi_extra=takes(ResponsesRequest),
)
async def create_response(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """What the model answers, whole or as a stream of events; stored, so that the next request can go on from it."""
    state = state_of(request)
    serving = state.serving()
    body, namespace, history, chat = await _asked(request, caller, serving)
    answering = Answering(serving.engine, state.metrics, _PROMPT)
    session = session_of(request, body.prompt_cache_key)
    turn = ChatTurn(chat, serving, namespace, state.settings, session)
    warnings = _warnings(body)
    answer = _Answer(body, chat, turn, serving, history, state.responses, namespace, warnings)
    try:
        return await respond(
            request,
            body,
            answering,
            lambda: [turn.request()],
            chunks=lambda: _chunks(answer, answering),
            whole=lambda answers: answer.whole(answers[0]),
            end=b"",
            failed=lambda error: _encoded(answer.failed(error)),
            headers=lambda: ignored_warning(body, *warnings),
            begins_within=0,  # clients give up on a stream that has not begun
        )
    except ApiError as error:
        raise renamed(error, body) from error


@router.post(
    "/responses/input_tokens",
    summary="Count the tokens of a conversation",
    response_model=InputTokens,
    responses=errors(400, 401, 404, 413, 415, 500, 503),
    openapi_extra=takes(ResponsesRequest),
)
async def count_input_tokens(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """How many tokens the prompt of the same request to ``/v1/responses`` has. Nothing is read."""
    state = state_of(request)
    serving = state.serving()
    body, namespace, _, chat = await _asked(request, caller, serving)
    turn = ChatTurn(chat, serving, namespace, state.settings)
    try:
        count = await on_thread(turn.count, _PROMPT)
    except ApiError as error:
        raise renamed(error, body) from error
    answer = InputTokens(object="response.input_tokens", input_tokens=count)
    return JSONResponse(answer.model_dump(), headers=ignored_warning(body, *_warnings(body)))


async def _asked(
    request: Request, caller: Caller, serving: Serving
) -> tuple[ResponsesRequest, str, History, ChatCompletionRequest]:
    """The body, its namespace, what it goes on from, and all of that as a chat request. Raises ApiError."""
    body = await read_body(request, ResponsesRequest)
    namespace = caller.namespace(body.cache_salt)
    history = await history_of(body, state_of(request).responses, serving, namespace)
    return body, namespace, history, await translated(request, partial(chat_of, body, history.messages))


def _warnings(body: ResponsesRequest) -> list[str]:
    if not body.skipped:
        return []
    says = f"skipped tools of the types: {listed(body.skipped)}"
    log.warning("a request for a response: %s", says)
    return [says]


class _Answer:
    """One response while it is made."""

    def __init__(
        self,
        body: ResponsesRequest,
        chat: ChatCompletionRequest,
        turn: ChatTurn,
        serving: Serving,
        history: History,
        store: ResponseStore,
        namespace: str,
        warnings: list[str],
    ) -> None:
        """``warnings``: what the answer's header says; more is added where the response can't be stored."""
        self._body = body
        self._chat = chat
        self._turn = turn
        self._serving = serving
        self._history = history
        self._store = store
        self._namespace = namespace
        self._warnings = warnings
        self._names = TokenNames(serving.model.vocab)
        self._head = response_head(
            body, new_id("resp"), serving.name, _choice_shown(body), shifts=turn.may_drop
        )
        self._writer: ResponseWriter | None = None

    @property
    def writer(self) -> ResponseWriter:
        """Once the request is made."""
        if self._writer is None:
            holds = self._chat.forces_call and not self._chat.stop
            self._writer = ResponseWriter(self._turn.reader(), calls_hold=holds)
        return self._writer

    def begun(self) -> list[StreamEvent]:
        """The events that a stream begins with."""
        event = self.writer.event
        return [
            event("response.created", response=self._head),
            event("response.in_progress", response=self._head),
        ]

    def wrote(self, event: TextEvent) -> list[StreamEvent]:
        entries = chat_logprobs(event.logprobs, self._names) if self._chat.logprobs else []
        return self.writer.write(event.text, entries)

    async def whole(self, answer: Completed) -> dict[str, Any]:
        """The response to a request that does not stream."""
        entries = chat_logprobs(answer.logprobs[0], self._names) if self._chat.logprobs else []
        self.writer.write(answer.texts[0], entries)
        self.writer.finish(answer.reasons[0])
        return await self.finished(answer.reasons[0], answer.usage, answer.explanation)

    async def finished(self, reason: str, usage: Usage, explanation: Explanation | None) -> dict[str, Any]:
        """The response when all is written. It is stored when this returns, if it was to be."""
        cut = reason == "length"
        response = {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.writer.items,
            "usage": response_usage(usage, await self._reasoning_tokens(usage.completion_tokens)),
            "timings": timings([usage]).model_dump(),
            **approximate_field([usage]),
            **explain_field(self._body.explain, [explanation]),
        }
        if response["store"] and not await self._stored(response):
            response["store"] = False
            self._warnings.append(_NOT_STORED)
        return response

    def failed(self, error: ApiError) -> list[StreamEvent]:
        """The last event of a stream that ends with an error."""
        said = renamed(error, self._body)
        response = {
            **self._head,
            "status": "failed",
            "error": {"code": _failure_code(said), "message": said.message},
            "output": self.writer.items,
            "store": False,
        }
        return [self.writer.event("response.failed", response=response)]

    async def _stored(self, response: dict[str, Any]) -> bool:
        turn = Turn(
            id=response["id"],
            previous=response["previous_response_id"],
            input=self._history.items,
            output=self.writer.items,
            calls=self.writer.calls,
            form=self._serving.style.tools.name,
        )
        return await stored(self._store, self._namespace, turn, response)

    async def _reasoning_tokens(self, most: int) -> int:
        """By tokenizing the text again, which is what was sampled but for the tags, and seldom otherwise."""
        texts = [
            part["text"]
            for item in self.writer.items
            if item["type"] == "reasoning"
            for part in item["content"]
        ]
        if not texts:
            return 0
        count = partial(
            self._serving.model.vocab.tokenize, "\n".join(texts), add_special=False, parse_special=False
        )
        return min(most, len(await to_thread.run_sync(count)))


async def _chunks(answer: _Answer, answering: Answering) -> AsyncIterator[bytes]:
    yield _encoded(answer.begun())
    reason, usage = "length", Usage()
    async for batch in answering.events():
        out: list[StreamEvent] = []
        for _, event in batch:
            match event:
                case TextEvent():
                    out += answer.wrote(event)
                case FinishEvent():
                    reason = event.reason
                    out += answer.writer.finish(reason)
                case DoneEvent():
                    usage = event.usage
        if out:
            yield _encoded(out)
    (explanation,) = answering.explanations
    response = await answer.finished(reason, usage, explanation)
    name = f"response.{response['status']}"
    yield _encoded([answer.writer.event(name, response=response)])


def _encoded(events: list[StreamEvent]) -> bytes:
    return b"".join([sse(event, event["type"]) for event in events])


def _choice_shown(body: ResponsesRequest) -> Any:
    """tool_choice in this API's form."""
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice or "auto"
    if choice["type"] == "function":
        return {"type": "function", "name": choice["function"]["name"]}
    allowed = choice["allowed_tools"]
    tools = [{"type": "function", "name": tool["function"]["name"]} for tool in allowed["tools"]]
    return {"type": "allowed_tools", "mode": allowed["mode"], "tools": tools}


def _failure_code(error: ApiError) -> str:
    if error.code == "context_length_exceeded":
        return error.code  # not in OpenAI's list, but what it sends, and what agents act on
    if error.status == 503:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"
