"""From a conversation to the prompt that the engine reads, and to shorter ones where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceread.chat.errors import ConversationTooLong
from onceread.chat.shorten import Shortened, shorten
from onceread.engine.errors import ContextLengthExceeded
from onceread.engine.request import Shorter
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.state import Serving

_REPLY = 4  # a prompt that is cut leaves a fourth of the context for the reply, or what it may have


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation in tokens."""

    tokens: tuple[int, ...]
    dropped: tuple[int, ...] = ()  # indices of messages that had to go
    shorter: Callable[[int], Shorter | None] | None = None  # for the engine, see its Request


def chat_prompt(
    body: ChatCompletionRequest, serving: Serving, *, may_drop: bool, max_tokens: int | None
) -> ChatPrompt:
    """Render and tokenize. With ``may_drop`` the oldest turns go where there are too many.

    Raises ChatError; ContextLengthExceeded, with both figures, where even the last turn alone does not fit.
    """
    messages = [message.for_template() for message in body.messages]

    def tokens_of(some: list[dict[str, Any]]) -> tuple[int, ...]:
        rendered = serving.template.render(
            some,
            add_generation_prompt=body.opens_turn,
            continue_final_message=bool(body.continue_final_message),
            variables=body.chat_template_kwargs,
        )
        return serving.tokenizer.chat(rendered)

    def within(room: int) -> Shortened[tuple[int, ...]] | None:
        try:
            return shorten(messages, tokens_of, room)
        except ConversationTooLong:
            return None

    def shorter(room: int) -> Shorter | None:
        found = within(room)
        return None if found is None else Shorter(found.prompt, found.dropped)

    tokens = tokens_of(messages)
    if not may_drop:
        return ChatPrompt(tokens)
    limit = serving.engine.limit
    if len(tokens) < limit:
        return ChatPrompt(tokens, (), shorter)
    reply = limit // _REPLY if max_tokens is None else min(max_tokens, limit // _REPLY)
    found = within(limit - max(1, reply)) or within(limit - 1)
    if found is None:
        raise ContextLengthExceeded(len(tokens), limit)
    return ChatPrompt(found.prompt, found.dropped, shorter)


def dropped_field(may_drop: bool, *dropped: tuple[int, ...]) -> dict[str, list[int]]:
    """The field ``dropped_messages`` of an answer, where messages may be dropped: indices, ascending."""
    return {"dropped_messages": sorted({i for some in dropped for i in some})} if may_drop else {}
