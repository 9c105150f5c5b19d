"""``POST /v1/messages`` and ``/v1/messages/count_tokens``, as Anthropic has them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent, Usage
from onceread.engine.request import Request as EngineRequest
from onceread.native.model import MemoryKind
from onceread.server.answering import Answering, on_thread
from onceread.server.anthropic_breakpoints import token_counts, usage_body
from onceread.server.anthropic_conversation import Conversation, Cut, chat_request
from onceread.server.anthropic_errors import REQUEST_ID, anthropic_error, request_id
from onceread.server.anthropic_reply import BlockWriter
from onceread.server.anthropic_schemas import (
    AnthropicErrorBody,
    CountTokensRequest,
    MessageBody,
    MessagesRequest,
    TokenCount,
)
from onceread.server.auth import Caller, authenticate
from onceread.server.body import ignored_warning, listed, read_body, translated
from onceread.server.chat_prompt import dropped_field
from onceread.server.chat_turn import ChatTurn
from onceread.server.errors import ApiError
from onceread.server.event_stream import sse
from onceread.server.openapi import errors, takes
from onceread.server.responding import respond
from onceread.server.session_hint import session_of
from onceread.server.settings import Settings
from onceread.server.state import Serving, state_of
from onceread.server.usage import approximate_field

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["Anthropic"])

BEGINS_WITHIN = 0.3
"""Seconds that a stream waits for the first token: until then it can tell of an error by its status, and begin
with what the prompt truly cost."""

PING_EVERY = 5.0
"""Seconds after which a stream that has nothing to say says so."""

_PROMPT = "messages"
_FORMAT = "output_config.format"
_THEIR_FORMAT = "response_format"  # what it is in OpenAI's words
_PING = sse({"type": "ping"}, "ping")


@router.post(
    "/messages",
    summary="Continue a conversation",
    response_model=None,
    responses={
        200: {"model": MessageBody, "content": {"text/event-stream": {}}},
        **errors(400, 401, 413, 415, 500, 503, model=AnthropicErrorBody),
    },
    openapi_extra=takes(MessagesRequest),
)
async def create_message(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """The assistant's next message, whole or as a stream of server-sent events."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, MessagesRequest)
    answering = Answering(serving.engine, state.metrics, _PROMPT)
    session = session_of(request, body.session)
    made = partial(MessageTurn, body, serving, caller.namespace(body.cache_salt), state.settings, session)
    turn = await translated(request, made)
    headers = _headers(body)
    return await respond(
        request,
        turn.chat,
        answering,
        turn.requests,
        chunks=lambda: _chunks(answering, turn),
        whole=lambda answers: _message(answers[0], turn),
        headers=lambda: headers,
        begins_within=BEGINS_WITHIN,
        end=b"",
        failed=partial(anthropic_error, headers[REQUEST_ID]),
    )


@router.post(
    "/messages/count_tokens",
    summary="Count a conversation's tokens",
    response_model=None,
    responses={
        200: {"model": TokenCount},
        **errors(400, 401, 413, 415, 500, 503, model=AnthropicErrorBody),
    },
    openapi_extra=takes(CountTokensRequest),
)
async def count_tokens(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """How many tokens of prompt a message would cost: nothing is read for it."""
    state = state_of(request)
    serving = state.serving()
    body = await read_body(request, CountTokensRequest)
    chat = await translated(request, lambda: chat_request(body, Conversation.of(body)))
    turn = ChatTurn(chat, serving, caller.namespace(body.cache_salt), state.settings)
    count = await on_thread(partial(_named, turn.count), _PROMPT)
    return JSONResponse(TokenCount(input_tokens=count).model_dump(), headers=_headers(body))


def _named(work: Callable[[], T]) -> T:
    """The result of ``work``; what is wrong with the output's format is told under the name that it has here."""
    try:
        return work()
    except ApiError as error:
        if error.param != _THEIR_FORMAT:
            raise
        message = error.message.replace(_THEIR_FORMAT, _FORMAT)
        raise replace(error, message=message, param=_FORMAT) from None


class MessageTurn:
    """Anthropic's request on its way to the engine, and what is told of it."""

    def __init__(
        self,
        body: MessagesRequest,
        serving: Serving,
        namespace: str,
        settings: Settings,
        session: str | None,
    ) -> None:
        """Raises ApiError."""
        self._conversation = Conversation.of(body)
        self.chat = chat_request(body, self._conversation)
        self._shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        self._serving = serving
        self._namespace = namespace
        self._turn = ChatTurn(self.chat, serving, namespace, settings, session)
        self._breakpoints: tuple[int, ...] = ()
        self._sent = 0  # tokens of the prompt

    def requests(self) -> Sequence[EngineRequest]:
        """What the engine is asked. Raises ApiError, ChatError."""
        asked = _named(self._turn.request)
        self._sent = len(asked.prompt)
        self._breakpoints = token_counts(self._cuts, asked.prompt, self.chat, self._serving, self._namespace)
        if (constraint := asked.sampling.constraint) is not None and self.chat.response_format is not None:
            named = replace(constraint, param=_FORMAT)
            asked = replace(asked, sampling=replace(asked.sampling, constraint=named))
        return [replace(asked, keep_at=self._breakpoints)]

    @property
    def _cuts(self) -> list[Cut]:
        """The breakpoints that matter: the last for what is told of the costs, the others only for checkpoints."""
        cuts = self._conversation.cuts
        return cuts[-1:] if self._serving.model.memory_kind is MemoryKind.PLAIN else cuts

    def writer(self) -> BlockWriter:
        """For the reply, once the request is made."""
        return BlockWriter(self._turn.reader(), shows_thinking=self._shows_thinking)

    def asked_stop(self, stop: str | None) -> str | None:
        """The stop string that ended the reply, if the client gave it."""
        return self._turn.asked_stop(stop)

    def head(self) -> dict[str, Any]:
        """What every message begins with."""
        name = self._serving.name
        return {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": name}

    def usage(self, usage: Usage) -> dict[str, int]:
        return usage_body(usage, self._breakpoints, self._sent).model_dump()

    @property
    def usage_so_far(self) -> dict[str, int]:
        """Before the prompt is read: nobody knows yet what of it is cached."""
        sent = self._sent
        return usage_body(Usage(prompt_tokens=sent, evaluated_tokens=sent), (), sent).model_dump()

    def more(self, usage: Usage, dropped: tuple[int, ...]) -> dict[str, Any]:
        """What only we have to say."""
        turn = self._turn
        ours = dropped_field(
            turn.may_drop, *(self._conversation.dropped(some) for some in (turn.dropped, dropped))
        )
        return {**approximate_field([usage]), **ours}


def _message(answer: Completed, turn: MessageTurn) -> dict[str, Any]:
    writer, reason, stop = turn.writer(), answer.reasons[0], turn.asked_stop(answer.stop_strings[0])
    writer.write(answer.texts[0])
    writer.finish(reason)
    return {
        **turn.head(),
        "content": writer.blocks,
        "stop_reason": writer.stop_reason(reason, stop),
        "stop_sequence": stop,
        "usage": turn.usage(answer.usage),
        **turn.more(answer.usage, answer.dropped),
    }


async def _chunks(answering: Answering, turn: MessageTurn) -> AsyncIterator[bytes]:
    writer = turn.writer()
    (prompt,) = answering.prompt_usages
    usage = turn.usage(prompt) if prompt is not None else turn.usage_so_far
    message = {**turn.head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield sse({"type": "message_start", "message": message}, "message_start")
    clock = asyncio.get_running_loop().time
    said = clock()
    ended: dict[str, Any] = {}
    async for batch in answering.events(idle=PING_EVERY):
        out: list[bytes] = []
        for _, event in batch:
            match event:
                case TextEvent():
                    out += writer.write(event.text)
                case FinishEvent():
                    out += writer.finish(event.reason)
                    stop = turn.asked_stop(event.stop_string)
                    ended = {"stop_reason": writer.stop_reason(event.reason, stop), "stop_sequence": stop}
                case DoneEvent():
                    last = {"type": "message_delta", "delta": ended, "usage": turn.usage(event.usage)}
                    out.append(sse({**last, **turn.more(event.usage, event.dropped)}, "message_delta"))
                    out.append(sse({"type": "message_stop"}, "message_stop"))
        # Also while a call is written, which is told when it is whole.
        if not out and (not batch or clock() - said >= PING_EVERY):
            out = [_PING]
        if out:
            said = clock()
            yield b"".join(out)


def _headers(body: CountTokensRequest) -> dict[str, str]:
    skipped = [f"skipped tools: {listed(body.skipped_tools)}"] if body.skipped_tools else []
    return {**ignored_warning(body, *skipped), REQUEST_ID: request_id()}
