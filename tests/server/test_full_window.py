"""The context's limit over HTTP with a real model: refused by default, or the oldest turns go; and moved reuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.live import Live, live_server

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
LIMIT = 512
WORDS = "the keeper of the northern light wrote every evening into a book what ships had passed"


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    with live_server(max_tokens_limit=None, engine={"ctx_size": LIMIT, "cache_ram": 64 * 2**20}) as live:
        yield live


def turns(n: int) -> list[dict[str, str]]:
    """A system message and ``n`` turns of about 50 tokens."""
    messages = [{"role": "system", "content": "You are a lighthouse keeper."}]
    for i in range(n):
        messages.append({"role": "user", "content": f"Turn {i}: {WORDS}. Go on."})
        messages.append({"role": "assistant", "content": f"Reply {i}: {WORDS}."})
    return messages[:-1]


def ask(live: Live, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
    response = live.client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_by_default_too_long_a_prompt_is_refused_with_both_figures(small: Live) -> None:
    response = small.client.post(CHAT, json={"messages": turns(20)})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(LIMIT) in error["message"]


def test_with_shift_whole_turns_go_and_the_reply_tells_which(small: Live) -> None:
    answer = ask(small, turns(20), overflow="shift")
    dropped = answer["dropped_messages"]
    assert dropped == list(range(1, len(dropped) + 1)), "the oldest, behind the system's message"
    assert len(dropped) % 2 == 0, "whole turns"
    assert answer["usage"]["prompt_tokens"] < LIMIT
    kept = [m for i, m in enumerate(turns(20)) if i not in dropped]
    assert ask(small, kept, overflow="shift")["dropped_messages"] == []
    assert ask(small, kept)["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert "dropped_messages" not in ask(small, kept)


def test_a_last_turn_that_does_not_fit_is_refused_all_the_same(small: Live) -> None:
    messages = [*turns(3), {"role": "assistant", "content": "."}, {"role": "user", "content": WORDS * 60}]
    response = small.client.post(CHAT, json={"messages": messages, "overflow": "shift"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_reply_goes_on_past_the_limit(small: Live) -> None:
    long = {"max_tokens": LIMIT + 100, "ignore_eos": True}
    messages = turns(6)
    answer = ask(small, messages, overflow="shift", **long)
    assert answer["usage"]["completion_tokens"] < LIMIT + 100, "the reply alone fills the window in the end"
    assert answer["usage"]["completion_tokens"] > LIMIT - answer["usage"]["prompt_tokens"] + 50
    assert answer["dropped_messages"]
    body = {"messages": messages, "stream": True, "temperature": 0, "overflow": "shift", **long}
    with small.client.stream("POST", CHAT, json=body) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["dropped_messages"] == answer["dropped_messages"]


def test_overflow_must_be_one_of_two_words(small: Live) -> None:
    response = small.client.post(CHAT, json={"messages": turns(1), "overflow": "wrap"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "overflow"


def test_what_was_moved_is_told(small: Live) -> None:
    messages = turns(6)
    ask(small, messages)
    head = [{"role": "system", "content": "It is Tuesday. You are a lighthouse keeper."}]
    answer = ask(small, head + messages[1:], reuse_moved=True)
    assert answer["approximate"] is True
    details = answer["usage"]["prompt_tokens_details"]
    assert details["cached_tokens_by_source"]["moved"] > 250
    assert sum(details["cached_tokens_by_source"].values()) == details["cached_tokens"]
    exact = ask(small, head + messages[1:])
    assert exact["usage"]["prompt_tokens_details"]["cached_tokens"] < 20
    assert "approximate" not in exact
