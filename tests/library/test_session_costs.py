"""What each step of a session costs on a real model, in tokens: only those that are new to it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.live import live_server

from onceread import Llama, Session
from onceread.library.remote import RemoteLlama
from onceread.library.reply import Reply
from onceread.library.session import Chats

pytestmark = pytest.mark.model

SYSTEM = "You keep the lighthouse of a small island, and answer in one short sentence. " * 6
EDITED = 12  # tokens of other words, and of the template between them and the reply
TURN = 18  # tokens of a question and the template around it, and the last one of the reply before
WRITTEN = 8  # tokens of each reply

_salts = itertools.count()


@pytest.fixture(scope="module", params=["in this process", "over HTTP"])
def llama(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Chats]:
    if request.param == "over HTTP":
        with live_server(engine={"cache_ram": 128 * 2**20}) as live:
            yield RemoteLlama(live.url)
    else:
        with Llama(smollm2_path, n_ctx=4096, cache_ram="128MiB", verbose=False) as here:
            yield here


@pytest.fixture
def session(llama: Chats) -> Session:
    """What was read for other tests does not count for it."""
    return Session(llama, SYSTEM, max_tokens=WRITTEN, temperature=0, cache_salt=f"{next(_salts)}")


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
    assert evaluated(session) <= size(session) - first - WRITTEN + 2
    for seed in (1, 2, 3):
        session.regenerate(seed=seed, temperature=1)
        assert evaluated(session) == 1

    session.edit(-2, "Who cleans the glass?")
    assert evaluated(session) <= EDITED
    session.edit(0, "How old is the tower?")
    assert evaluated(session) <= EDITED

    session.undo()
    session.send("How old is the tower?")  # the same again: all of it is known
    assert evaluated(session) == 1
    session.undo()
    session.send("How old is the boat?")
    assert evaluated(session) <= EDITED

    twin = session.fork()
    twin.send("And the dog?")
    assert evaluated(twin) <= TURN
    session.switch(session.branches[0])  # the one with four messages, left long ago
    assert len(session.messages) == 4
    session.send("And the cat?")
    assert evaluated(session) <= TURN


def test_a_stopped_reply_costs_nothing_twice(session: Session) -> None:
    pieces = session.stream("Tell me of the storm.", max_tokens=64, ignore_eos=True)
    for _ in range(3):
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert session.messages[-1]["partial"]
    session.send("Go on.")
    assert evaluated(session) <= TURN
    assert size(session) > 90


FIRST = """
from onceread import Llama, Session
import sys
with Llama(sys.argv[1], n_ctx=1024, cache_dir=sys.argv[2], verbose=False) as llama:
    session = Session(llama, sys.argv[4], max_tokens=8, temperature=0)
    session.send("How high is the tower?")
    session.send("Who lights the lamp?")
    session.save(sys.argv[3])
"""
SECOND = """
from onceread import Llama, Session
import dataclasses, json, sys
with Llama(sys.argv[1], n_ctx=1024, cache_dir=sys.argv[2], verbose=False) as llama:
    session = Session.load(sys.argv[3], llama)
    session.regenerate()
    print(json.dumps(dataclasses.asdict(session.last)))
    session.send("And the cat?")
    print(json.dumps(dataclasses.asdict(session.last)))
"""


def test_a_session_loaded_in_a_new_process_is_read_from_disk(smollm2_path: Path, tmp_path: Path) -> None:
    arguments = [str(smollm2_path), str(tmp_path / "cache"), str(tmp_path / "chat.json"), SYSTEM]

    def run(program: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    run(FIRST)
    again, further = run(SECOND)
    assert again["evaluated"] == 1
    assert again["cached_by_source"]["disk"] == again["prompt_tokens"] - 1
    assert again["prompt_tokens"] > 90
    assert further["evaluated"] <= TURN
