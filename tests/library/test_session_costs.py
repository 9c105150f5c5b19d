"""What each step of a session costs on a real model, in tokens: only those that are new to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.live import Live, live_server

from onceread.library.remote import RemoteLlama
from onceread.library.reply import Reply
from onceread.library.session import Session

pytestmark = pytest.mark.model

SYSTEM = "You keep the lighthouse of a small island, and answer in one short sentence. " * 6
AROUND = 12  # tokens of the template around a message, and the one that logits need


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server(engine={"cache_ram": 128 * 2**20}) as running:
        yield running


@pytest.fixture
def session(live: Live) -> Session:
    live.engine.clear({"default"})
    return Session(RemoteLlama(live.url), SYSTEM, max_tokens=8, temperature=0)


def last(session: Session) -> Reply:
    assert session.last is not None
    return session.last


def evaluated(session: Session) -> int:
    found = last(session).evaluated
    assert found is not None
    return found


def size(session: Session) -> int:
    """Tokens of the last prompt."""
    found = last(session).prompt_tokens
    assert found is not None
    return found


def test_each_step_costs_its_new_tokens(session: Session) -> None:
    session.send("How high is the tower?")
    first = size(session)
    assert evaluated(session) == first > 90, "the cold prompt is long enough to tell"

    session.send("Who lights the lamp?")
    written = 8
    assert evaluated(session) <= size(session) - first - written + 2
    for seed in (1, 2, 3):
        session.regenerate(seed=seed, temperature=1)
        assert evaluated(session) == 1

    session.edit(-2, "Who cleans the glass?")
    assert evaluated(session) <= AROUND
    session.edit(0, "How old is the tower?")
    assert evaluated(session) <= AROUND

    session.undo()
    session.send("How old is the tower?")  # the same again: all of it is known
    assert evaluated(session) == 1
    session.undo()
    session.send("How old is the boat?")
    assert evaluated(session) <= AROUND

    twin = session.fork()
    twin.send("And the dog?")
    assert evaluated(twin) <= AROUND
    session.switch(session.branches[0])  # the one with four messages, left long ago
    assert len(session.messages) == 4
    session.send("And the cat?")
    assert evaluated(session) <= AROUND + 2


def test_a_stopped_reply_costs_nothing_twice(session: Session) -> None:
    pieces = session.stream("Tell me of the storm.", max_tokens=16)
    for _ in range(3):
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert session.messages[-1]["partial"]
    session.send("Go on.")
    assert evaluated(session) <= AROUND + 2
    assert size(session) > 90
