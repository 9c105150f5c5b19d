"""Conversations that are too long lose their oldest turns, whole, and as few as will do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceread.chat.builtin import CHATML
from onceread.chat.errors import ChatError, ConversationTooLong
from onceread.chat.shorten import Shortened, shorten
from onceread.chat.template import ChatTemplate

Message = dict[str, Any]
LETTERS = {
    "s": "system",
    "d": "developer",
    "u": "user",
    "a": "assistant",
    "t": "tool",
}


def conversation(roles: str) -> list[Message]:
    return [{"role": LETTERS[role], "content": str(i)} for i, role in enumerate(roles)]


class Renderer:
    """A prompt of 10 tokens a message, counted."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, messages: list[Message]) -> list[int]:
        self.asked += 1
        return [int(m["content"]) for m in messages for _ in range(10)]


def shortened(roles: str, fit: int) -> Shortened[list[int]]:
    """With room for ``fit`` messages."""
    return shorten(conversation(roles), Renderer(), 10 * fit)


@pytest.mark.parametrize(
    ("roles", "fit", "dropped"),
    [
        pytest.param("suauau", 6, [], id="all of it fits"),
        pytest.param("suauau", 5, [1, 2], id="the oldest turn goes as a whole"),
        pytest.param("suauau", 4, [1, 2], id="and no more than must"),
        pytest.param("suauau", 3, [1, 2, 3, 4], id="two turns"),
        pytest.param("suauau", 2, [1, 2, 3, 4], id="the last message is a user's"),
        pytest.param("sduau", 4, [2, 3], id="developer messages belong to the head"),
        pytest.param("uauau", 3, [0, 1], id="without a head"),
        pytest.param("suatatauau", 7, [1, 2, 3, 4, 5, 6], id="tool results go with their calls"),
        pytest.param("suauatata", 7, [1, 2], id="and stay with them"),
        pytest.param("sauau", 4, [1], id="a greeting goes first"),
        pytest.param("suasuau", 5, [1, 2, 3], id="a later system message goes with its turn"),
        pytest.param("suuau", 4, [1], id="a user's message without an answer is a turn"),
    ],
)
def test_the_oldest_turns_go(roles: str, fit: int, dropped: list[int]) -> None:
    result = shortened(roles, fit)
    assert list(result.dropped) == dropped
    assert result.prompt == [i for i in range(len(roles)) if i not in dropped for _ in range(10)]


@pytest.mark.parametrize(
    ("roles", "fit", "needed"),
    [
        pytest.param("suauata", 4, 50, id="the last turn with its tools"),
        pytest.param("sdu", 2, 30, id="nothing but a head and a message"),
        pytest.param("ss", 1, 20, id="nothing but a head"),
        pytest.param("saaa", 3, 40, id="no user has spoken"),
    ],
)
def test_where_the_head_and_the_last_turn_do_not_fit_both_figures_are_told(
    roles: str, fit: int, needed: int
) -> None:
    with pytest.raises(
        ConversationTooLong, match=rf"alone take {needed} tokens.*at most {10 * fit} fit"
    ) as caught:
        shortened(roles, fit)
    assert isinstance(caught.value, ChatError)
    assert (caught.value.needed, caught.value.limit) == (needed, 10 * fit)


@given(st.text("sdauuaat", max_size=30), st.integers(0, 31))
def test_it_is_the_longest_that_fits_of_those_that_may_be_left(roles: str, fit: int) -> None:
    messages = conversation(roles)
    head = len(roles) - len(roles.lstrip("sd"))
    begins = [i for i in range(head, len(roles)) if roles[i] == "u" or i == head]
    allowed = [list(range(len(roles)))] + [[*range(head), *range(begin, len(roles))] for begin in begins[1:]]
    fitting = [left for left in allowed if len(left) <= fit]
    if not fitting:
        with pytest.raises(ConversationTooLong) as caught:
            shorten(messages, Renderer(), 10 * fit)
        assert caught.value.needed == 10 * min(map(len, allowed))
        return
    result = shorten(messages, Renderer(), 10 * fit)
    assert result.prompt[::10] == max(fitting, key=len)
    assert sorted([*result.dropped, *result.prompt[::10]]) == list(range(len(roles)))


def test_a_long_conversation_is_rendered_a_few_times_only() -> None:
    messages = conversation("s" + "ua" * 500)
    renderer = Renderer()
    assert not shorten(messages, renderer, 10_010).dropped
    assert renderer.asked == 1
    for fit in (3, 57, 400, 800, 1000):
        renderer = Renderer()
        assert len(shorten(messages, renderer, 10 * fit).prompt) in (10 * fit, 10 * fit - 10)
        assert renderer.asked <= 11


STRICT = """\
{%- set turns = messages[1:] if messages[0]['role'] == 'system' else messages -%}
{%- for message in turns -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('roles must alternate') -}}
{%- endif -%}
{{- '[' + message['role'] + ']' + message['content'] -}}
{%- endfor -%}
"""


@pytest.mark.parametrize(
    "source", [CHATML, STRICT], ids=["chatml", "a template that wants roles to alternate"]
)
def test_what_is_left_can_be_rendered(source: str) -> None:
    template = ChatTemplate(source, control_tokens={"<|im_start|>": 1})
    messages = conversation("suauauau")
    whole = template.render(messages).text
    result = shorten(messages, lambda left: template.render(left).text.encode(), len(whole) - 1)
    assert result.dropped == (1, 2)
    assert bytes(result.prompt).decode() == template.render([messages[0], *messages[3:]]).text
