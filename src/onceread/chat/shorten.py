"""A conversation that is too long, cut by whole turns: the oldest go, what the system said and the last turn stay.

    kept     system  developer |                                    | user  assistant  tool  assistant
    dropped                    | user  assistant | user  assistant  |

A turn is a user's message and everything up to the next one, so tool results stay with their calls. What stands
before the first user's message (a greeting) counts as a turn of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onceread.chat.errors import ConversationTooLong

M = TypeVar("M", bound=Mapping[str, Any])
Prompt = TypeVar("Prompt", bound=Sequence[int])

_HEAD_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Shortened(Generic[Prompt]):
    """What is left of a conversation."""

    prompt: Prompt
    dropped: tuple[int, ...]  # indices of the messages that are not in it, ascending


def shorten(messages: Sequence[M], prompt_of: Callable[[list[M]], Prompt], limit: int) -> Shortened[Prompt]:
    """Drop as few of the oldest turns as make the prompt at most ``limit`` tokens long.

    ``prompt_of`` renders and tokenizes; it is asked at most 2 + log₂(turns) times, and once where everything
    fits. Raises ConversationTooLong, and what ``prompt_of`` does.
    """
    prompt = prompt_of(list(messages))
    if len(prompt) <= limit:
        return Shortened(prompt, ())
    head, starts = _head(messages), _turns(messages)

    def without(turns: int) -> Prompt:
        return prompt_of([*messages[:head], *messages[starts[turns] :]])

    # All but the last turn first: if that does not fit, nothing will.
    most = len(starts) - 1
    if most > 0:
        prompt = without(most)
    if len(prompt) > limit:
        raise ConversationTooLong(len(prompt), limit)
    fewest, best = 1, most
    while fewest < best:
        middle = (fewest + best) // 2
        shorter = without(middle)
        if len(shorter) <= limit:
            best, prompt = middle, shorter
        else:
            fewest = middle + 1
    return Shortened(prompt, tuple(range(head, starts[best])))


def _head(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many messages at the beginning are the system's or the developer's."""
    for i, message in enumerate(messages):
        if message.get("role") not in _HEAD_ROLES:
            return i
    return len(messages)


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where each turn after the head begins."""
    head = _head(messages)
    starts = [i for i in range(head, len(messages)) if messages[i].get("role") == "user"]
    return starts if not head < len(messages) or starts[:1] == [head] else [head, *starts]
