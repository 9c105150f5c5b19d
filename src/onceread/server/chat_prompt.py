"""From a conversation to the prompt that the engine reads, and to shorter ones where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceread.chat.errors import ConversationTooLong
from onceread.chat.forced import CannotForce, force_call
from onceread.chat.reasoning import left_open
from onceread.chat.rendered import Rendered
from onceread.chat.shorten import Shortened, shorten
from onceread.engine.errors import ContextLengthExceeded
from onceread.engine.request import Shorter
from onceread.native.errors import GrammarInvalid
from onceread.server.chat_render import prepared, prepared_tools, render
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.errors import invalid
from onceread.server.state import Serving

_REPLY = 4  # a prompt that is cut leaves a fourth of the context for the reply, or what it may have


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation in tokens."""

    tokens: tuple[int, ...]
    thinks: bool  # the reply begins inside of the tags that the model thinks between
    forced: str | None  # a grammar that makes the reply a call, in Lark
    dropped: tuple[int, ...] = ()  # indices of messages that had to go
    shorter: Callable[[int], Shorter | None] | None = None  # for the engine, see its Request


def chat_prompt(
    body: ChatCompletionRequest, serving: Serving, namespace: str, *, may_drop: bool, max_tokens: int | None
) -> ChatPrompt:
    """Render and tokenize. With ``may_drop`` the oldest turns go where there are too many.

    Raises ChatError, ApiError; ContextLengthExceeded, with both figures, where even the last turn alone does not fit.
    """
    messages = prepared(body.messages, serving, namespace)
    tools = prepared_tools(body.tools)
    last = messages[-1]["content"] if body.continues else None

    def rendered(some: list[dict[str, Any]]) -> Rendered:
        return _rendered(body, serving, some, tools)

    whole = rendered(messages)
    thinks = _thinks(serving, whole, last)
    forced = _forced(body, serving)

    def tokens_of(some: list[dict[str, Any]]) -> tuple[int, ...]:
        return serving.tokenizer.chat(rendered(some))

    def within(room: int) -> Shortened[tuple[int, ...]] | None:
        try:
            return shorten(messages, tokens_of, room)
        except ConversationTooLong:
            return None

    def shorter(room: int) -> Shorter | None:
        found = within(room)
        return None if found is None else Shorter(found.prompt, found.dropped)

    tokens = serving.tokenizer.chat(whole)
    if not may_drop:
        return ChatPrompt(tokens, thinks, forced)
    limit = serving.engine.limit
    if len(tokens) < limit:
        return ChatPrompt(tokens, thinks, forced, (), shorter)
    reply = limit // _REPLY if max_tokens is None else min(max_tokens, limit // _REPLY)
    found = within(limit - max(1, reply)) or within(limit - 1)
    if found is None:
        raise ContextLengthExceeded(len(tokens), limit)
    return ChatPrompt(found.prompt, thinks, forced, found.dropped, shorter)


def rendered_chat(body: ChatCompletionRequest, serving: Serving, namespace: str) -> Rendered:
    """The whole conversation, before it is tokenized. Raises ChatError."""
    messages = prepared(body.messages, serving, namespace)
    return _rendered(body, serving, messages, prepared_tools(body.tools))


def _rendered(
    body: ChatCompletionRequest,
    serving: Serving,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
) -> Rendered:
    return render(
        serving,
        messages,
        tools,
        add_generation_prompt=body.opens_turn,
        continue_final_message=body.continues,
        variables=body.template_variables,
    )


def dropped_field(may_drop: bool, *dropped: tuple[int, ...]) -> dict[str, list[int]]:
    """The field ``dropped_messages`` of an answer, where messages may be dropped: indices, ascending."""
    return {"dropped_messages": sorted({i for some in dropped for i in some})} if may_drop else {}


def _thinks(serving: Serving, whole: Rendered, continued: str | None) -> bool:
    tags = serving.style.think
    if tags is None:
        return False
    if continued is not None:
        return left_open(continued, tags)
    return "".join([part.text for part in whole.segments[-2:]]).rstrip().endswith(tags[0])


def _forced(body: ChatCompletionRequest, serving: Serving) -> str | None:
    """A grammar where the reply must be a call, or either a call or what the request says."""
    either = body.constraint if body.callable_tools and not body.forces_call else None
    if not body.forces_call and (either is None or either.kind != "json_schema"):
        return None
    style = serving.style
    tools = sorted(body.callable_tools, key=lambda tool: tool.function.name)
    try:
        return force_call(
            style.tools.shape,
            [tool.function.model_dump() for tool in tools],
            many=body.many_calls and not style.single,
            marks=serving.model.vocab.marks,
            otherwise=either.text if either else None,
        )
    except CannotForce as error:
        raise invalid(f"tools: {error}.", "tools") from error
    except GrammarInvalid as error:
        raise invalid(str(error), either.param if either else None) from error
