"""What a request's conversation is: the stored responses it goes on from, its own items, and what it refers to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from onceread.cache.errors import CacheError
from onceread.server.errors import ApiError, invalid
from onceread.server.responses_items import Item, ItemReference
from onceread.server.responses_messages import Message, messages_of
from onceread.server.responses_schemas import ResponsesRequest
from onceread.server.responses_store import ResponseMissing, ResponseStore, Turn
from onceread.server.state import Serving
from onceread.server.threads import wait_in_thread

log = logging.getLogger(__name__)

_STORED_WITHIN = 10.0  # seconds that an answer waits for the disk
_MAX_QUOTED = 64  # stored responses that the references of one request may be to


@dataclass(frozen=True, slots=True)
class History:
    """A conversation up to the reply."""

    turns: Sequence[Turn]  # stored, oldest first
    items: Sequence[Item]  # new
    instructions: str | None

    @property
    def messages(self) -> list[Message]:
        return messages_of(self.instructions, self.turns, self.items)


async def history_of(
    body: ResponsesRequest, store: ResponseStore, serving: Serving, namespace: str
) -> History:
    """The conversation of a request. Raises ApiError, DiskUnusable."""
    if body.input is None:
        raise invalid("input is required.", "input", "missing_required_parameter")
    refers = any(isinstance(item, ItemReference) for item in body.input)
    if body.previous_response_id is None and not refers:
        return History((), _items(body, None, namespace)[0], body.instructions)
    read = partial(_read, body, store, namespace)
    turns, items, quoted = await wait_in_thread(read)
    form = serving.style.tools.name
    for turn in (*turns, *quoted):
        if turn.form == form:  # else it was another model, with other words for a call
            for call_id, call in turn.calls.items():
                serving.issued.add(namespace, call_id, call)
    return History(turns, items, body.instructions)


async def stored(store: ResponseStore, namespace: str, turn: Turn, response: dict[str, Any]) -> bool:
    """Store a response. False if that failed: the log says why, and the answer goes out all the same."""
    try:
        work = partial(store.put, namespace, turn, response)
        await asyncio.wait_for(wait_in_thread(work), _STORED_WITHIN)
    except (CacheError, ApiError) as error:
        log.error("the response %s is not stored: %s", turn.id, error)
    except asyncio.TimeoutError:
        log.error("the response %s is not stored: the disk took more than %g s", turn.id, _STORED_WITHIN)
    else:
        return True
    return False


def _read(
    body: ResponsesRequest, store: ResponseStore, namespace: str
) -> tuple[list[Turn], list[Item], list[Turn]]:
    turns: list[Turn] = []
    previous = body.previous_response_id
    if previous is not None:
        try:
            turns = store.chain(namespace, previous)
        except ResponseMissing as error:
            missing = str(error)
            why = "" if missing == previous else f", because {missing[:80]!r} before it is gone"
            message = f"Previous response with id {previous[:80]!r} not found{why}."
            raise invalid(message, "previous_response_id", "previous_response_not_found") from None
    items, quoted = _items(body, store, namespace)
    return turns, items, quoted


def _items(
    body: ResponsesRequest, store: ResponseStore | None, namespace: str
) -> tuple[list[Item], list[Turn]]:
    """The new items, and the stored responses that they refer to."""
    items: list[Item] = []
    found: dict[str, Item] = {}  # of the stored responses that were read for this request
    quoted: list[Turn] = []
    for i, item in enumerate(body.input or ()):
        if not isinstance(item, ItemReference):
            items.append(item.stored())
            continue
        if item.id not in found and store is not None and len(quoted) < _MAX_QUOTED:
            turn = store.holder(namespace, item.id)
            if turn is not None:
                found |= {one["id"]: one for one in (*turn.input, *turn.output) if "id" in one}
                quoted.append(turn)
        if item.id not in found:
            if len(quoted) == _MAX_QUOTED:
                message = f"input[{i}]: the references are to more than {_MAX_QUOTED} stored responses."
                raise invalid(message, f"input[{i}]")
            message = f"input[{i}]: Item with id {item.id[:80]!r} not found."
            raise ApiError(404, message, param=f"input[{i}].id", code="item_not_found")
        items.append(found[item.id])
    return items, quoted
