"""Read a prompt now and write nothing: what warming and pinning begin with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from fastapi import Request

from onceread.engine.request import Request as EngineRequest
from onceread.engine.request import Usage
from onceread.server.answering import Answering, until_disconnect
from onceread.server.cache_schemas import ReadingFields
from onceread.server.chat_render import prepared, prepared_tools, render
from onceread.server.state import AppState, Serving
from onceread.server.text_completions import prompt_tokens
from onceread.server.threads import wait_in_thread

if TYPE_CHECKING:
    from onceread.engine.engine import Engine

STORED_WITHIN = 10.0  # seconds that an answer waits for the store
_LOOK_AGAIN = 0.25


@dataclass(frozen=True, slots=True)
class Read:
    """A prompt that was read."""

    tokens: tuple[int, ...]
    usage: Usage
    stored: bool  # the store has all of it


async def read_now(
    request: Request, state: AppState, serving: Serving, body: ReadingFields, namespace: str
) -> Read:
    """Read ``body``'s prompt or messages, and wait a while until the store has them.

    Stops when the client goes. Raises what a completion would.
    """
    made: list[EngineRequest] = []

    def prepare() -> Sequence[EngineRequest]:
        alignable = not isinstance(body.prompt, list)  # token ids are taken to the letter
        tokens = tokens_of(serving, body, namespace)
        made.append(EngineRequest(tokens, max_tokens=0, namespace=namespace, alignable=alignable))
        return made

    answering = Answering(serving.engine, state.metrics, body.source)
    try:
        await until_disconnect(request, answering.start(prepare))
        (answer,) = await until_disconnect(request, answering.gather())
    finally:
        answering.cancel()
    tokens = made[0].prompt
    wait = partial(wait_stored, serving.engine, namespace, tokens, STORED_WITHIN)
    stored = await until_disconnect(request, wait_in_thread(wait))
    return Read(stored or tokens, answer.usage, stored is not None)


def wait_stored(
    engine: Engine, namespace: str, tokens: tuple[int, ...], seconds: float
) -> tuple[int, ...] | None:
    """Wait until the store has what was read, and say with which tokens; None if it takes longer.

    They are not ``tokens`` where a known path spells the same text otherwise: then that one was used.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if engine.wait_remembered(namespace, tokens, min(left, _LOOK_AGAIN)):
            return tokens
        if (other := _spelled_otherwise(engine, namespace, tokens)) is not None:
            return other
    return None


def _spelled_otherwise(engine: Engine, namespace: str, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
    store = engine.store
    if store is None:
        return None
    text = store.spell(np.asarray(tokens, dtype=np.int32))
    path = store.match_text(namespace, text)
    if not store.spell(path).startswith(text):
        return None
    ends = np.cumsum([len(store.spell(path[i : i + 1])) for i in range(len(path))])
    end = int(np.searchsorted(ends, len(text))) + 1
    return tuple(path[:end].tolist()) if ends[end - 1] == len(text) else None


def tokens_of(serving: Serving, body: ReadingFields, namespace: str) -> tuple[int, ...]:
    """What to read. Raises ApiError, ChatError."""
    if body.prompt is not None:
        return prompt_tokens(body.prompt, serving)
    assert body.messages is not None
    # Without the opening of the assistant's turn: so each later turn of any chat that begins like this
    # is a continuation.
    rendered = render(
        serving,
        prepared(body.messages, serving, namespace),
        prepared_tools(body.tools),
        add_generation_prompt=False,
        variables=body.chat_template_kwargs,
    )
    return serving.tokenizer.chat(rendered)
