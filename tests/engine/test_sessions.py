"""A session's paths stay together in the store: while a sub-agent works, the conversation that it works for stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.tiny.plain import plain_model

from onceread.cache.store import Store
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Completed, Request, gather
from onceread.engine.sessions import MOST_PATHS, Sessions
from onceread.native.model import Model
from onceread.native.params import SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("tiny"), smollm2_path) as model:
        yield model


@pytest.fixture
def make_engine(plain: Model) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**changes: object) -> Engine:
        config = EngineConfig(**{"ctx_size": 4096, "check": True, "resident_cells": 0} | changes)  # type: ignore[arg-type]
        made.append(Engine(plain, config).start())
        return made[-1]

    yield make
    for engine in made:
        engine.close(grace=0)


def words(rng: random.Random, n: int) -> Tokens:
    return tuple(rng.randrange(100, 40_000) for _ in range(n))


def ask(engine: Engine, prompt: Tokens, session: str | None = None, namespace: str = "default") -> Completed:
    request = Request(
        prompt, GREEDY, 2, session=session, namespace=namespace, alignable=False, ignore_eos=True
    )
    done = gather(engine.submit(request))
    engine.clear({"nobody"})  # what follows the reply is done
    return done


def bytes_per_token(engine: Engine) -> float:
    ask(engine, words(random.Random(1), 400))
    assert engine.store is not None
    return engine.store.stats().memory.bytes / 400


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_while_a_sub_agent_works_the_conversation_stays(
    make_engine: Callable[..., Engine], named: bool
) -> None:
    room = int(1500 * bytes_per_token(make_engine(cache_ram=64 * 1024 * 1024)))
    engine = make_engine(cache_ram=room)
    rng = random.Random(7)
    session = "one" if named else None
    conversation = words(rng, 400)
    ask(engine, conversation, session)
    for _ in range(6):
        ask(engine, words(rng, 100), session)
        for _ in range(2):
            ask(engine, words(rng, 300))
    cached = ask(engine, (*conversation, *words(rng, 20)), session).usage.cached_tokens
    # Without the name it has to go: else this shows nothing.
    assert (cached >= 400) if named else (cached < 400)


class Uses:
    """What the store is told of."""

    def __init__(self) -> None:
        self.paths: list[tuple[str, tuple[int, ...], bool]] = []

    def use(self, namespace: str, tokens: np.ndarray, *, text: bool) -> None:
        self.paths.append((namespace, tuple(tokens.tolist()), text))


def use(
    sessions: Sessions, uses: Uses, path: Tokens, session: str | None, namespace: str = "a"
) -> list[Tokens]:
    """The paths that count as used beside ``path``."""
    uses.paths.clear()
    request = Request(path, session=session, namespace=namespace)
    sessions.use(request, np.asarray(path, dtype=np.int32))
    assert uses.paths[0] == (namespace, path, True)
    assert all(where == namespace and not text for where, _, text in uses.paths[1:])
    return [tokens for _, tokens, _ in uses.paths[1:]]


def test_whose_paths_count() -> None:
    uses = Uses()
    store: Store = uses  # type: ignore[assignment]
    sessions = Sessions(store)
    assert use(sessions, uses, (1, 2), "s") == []
    assert use(sessions, uses, (3, 4), "s") == [(1, 2)]
    assert use(sessions, uses, (1, 2, 5), "s") == [(3, 4)]  # (1, 2) goes on
    assert use(sessions, uses, (9,), "s", "b") == []  # of another namespace
    assert use(sessions, uses, (9,), "t") == []  # of another session
    assert use(sessions, uses, (9,), None) == []
    assert use(sessions, uses, (6,), "s") == [(3, 4), (1, 2, 5)]
    sessions.forget({"a"})
    assert use(sessions, uses, (6,), "s") == []
    assert use(sessions, uses, (7,), "s", "b") == [(9,)]


def test_a_session_that_never_goes_on_keeps_its_last_paths() -> None:
    uses = Uses()
    store: Store = uses  # type: ignore[assignment]
    sessions = Sessions(store)
    for i in range(50):
        others = use(sessions, uses, (i, 0), "s")
    assert others == [(i, 0) for i in range(49 - MOST_PATHS + 1, 49)]
