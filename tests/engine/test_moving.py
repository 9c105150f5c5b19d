"""Moved reuse and replies past the limit, in the engine: how much is reused, and who never sees any of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.reference import Reference, distance, recording
from tests.tiny.models import loaded
from tests.tiny.plain import plain_model

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import InvalidRequest, MovedUnavailable
from onceread.engine.request import Completed, Request, Shorter, gather
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from onceread.native.shift import Shifter

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
MIB = 1024 * 1024
# Noise of this F32 model; wrong state is off by more.
BOUND = 0.3
Tokens = tuple[int, ...]
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("tiny"), smollm2_path) as model:
        yield model


@pytest.fixture
def make_engine(plain: Model) -> Iterator[MakeEngine]:
    made: list[Engine] = []

    def make(model: Model = plain, **changes: object) -> Engine:
        config = EngineConfig(**{"ctx_size": 8192, "check": True} | changes)  # type: ignore[arg-type]
        made.append(Engine(model, config).start())
        return made[-1]

    yield make
    for engine in made:
        engine.close(grace=0)


def words(rng: random.Random, n: int) -> Tokens:
    return tuple(rng.randrange(100, 40_000) for _ in range(n))


def ask(engine: Engine, prompt: Tokens, n: int = 4, *, moved: bool = True, **more: object) -> Completed:
    settings = {"alignable": False, "ignore_eos": True, "reuse_moved": moved} | more
    done = gather(engine.submit(Request(prompt, GREEDY, n, **settings)))  # type: ignore[arg-type]
    engine.clear({"nobody"})  # returns when what follows the reply is done
    usage = done.usage
    cached = usage.cached
    assert usage.cached_tokens == cached.context + cached.memory + cached.disk + cached.moved
    return done


def sliding(rng: random.Random, turns: int) -> Iterator[Tokens]:
    """A client that drops its oldest turns to stay under 2,048 tokens: a head of 300, turns of 150."""
    head, history = words(rng, 300), [words(rng, 150) for _ in range(11)]
    for _ in range(turns):
        history.append(words(rng, 150))
        while 300 + 150 * len(history) > 2048 - 8:
            del history[0]
        yield head + tuple(token for turn in history for token in turn)


@pytest.mark.parametrize("where", ["context", "a context that holds but one", "RAM", "disk"])
def test_a_window_that_slides_on_the_clients_side_is_mostly_reused(
    make_engine: MakeEngine, tmp_path: Path, where: str
) -> None:
    settings = {
        "context": {},
        "a context that holds but one": {"ctx_size": 2048},
        "RAM": {"cache_ram": 256 * MIB},
        "disk": {"cache_ram": 256 * MIB, "cache_dir": tmp_path},
    }[where]
    engine = make_engine(**settings)
    prompts = list(sliding(random.Random(1), 20))
    ask(engine, prompts[0])
    reused = total = 0
    for i, prompt in enumerate(prompts[1:]):
        if where == "disk" and i == 10:
            engine.close()
            engine = make_engine(**settings)
        usage = ask(engine, prompt).usage
        reused += usage.cached_tokens
        total += usage.prompt_tokens
        if i != 10:
            assert usage.cached.moved > 1000
    assert reused >= 0.85 * total
    engine.clear(None)
    ask(engine, prompts[0], moved=False)
    for prompt in prompts[1:3]:
        assert ask(engine, prompt, moved=False).usage.cached_tokens == 300, "the exact prefix"


def test_a_changed_timestamp_near_the_top_costs_little(make_engine: MakeEngine) -> None:
    rng = random.Random(2)
    engine = make_engine(cache_ram=256 * MIB)
    first, preamble = words(rng, 20), words(rng, 2_970)
    for i in range(4):
        usage = ask(engine, first + words(rng, 10) + preamble + words(rng, 5)).usage
        if i:
            assert usage.cached_tokens >= 0.9 * usage.prompt_tokens
            assert usage.cached.moved >= 2_900


def test_insertions_and_replacements_are_found_too(make_engine: MakeEngine) -> None:
    rng = random.Random(3)
    engine = make_engine(cache_ram=256 * MIB)
    a, b, c = (words(rng, 300) for _ in range(3))
    ask(engine, a + b + c)
    note = words(rng, 30)
    for prompt in (a + note + b + c + note, note + b + note + c + note, c + note + a + b):
        usage = ask(engine, prompt).usage
        assert usage.evaluated_tokens <= 3 * 30 + 4


def test_only_who_asked_for_it_gets_what_was_moved(make_engine: MakeEngine, plain: Model) -> None:
    """The others read for themselves and answer as if cold, from the context and from the store."""
    rng = random.Random(4)
    engine = make_engine(cache_ram=256 * MIB)
    reference = Reference(plain, n_ctx=4096)
    a, b, note, more = words(rng, 200), words(rng, 300), words(rng, 40), words(rng, 20)
    with recording() as traces:
        ask(engine, a + b)
        assert ask(engine, note + b + more).usage.cached.moved == 300
        assert ask(engine, note + b + more, moved=False).usage.cached_tokens == 40
        # Now both are there, the moved and the true one; whoever does not ask gets the true one.
        assert ask(engine, note + b + more, moved=False).usage.cached_tokens == 359
        handle = engine.submit(Request(note + b + more, GREEDY, 8, alignable=False, ignore_eos=True))
        gather(handle)
        assert distance(traces[id(handle), 0], reference) < BOUND
        other = engine.submit(
            Request(note + b + more, GREEDY, 8, namespace="b", alignable=False, reuse_moved=True)
        )
        assert gather(other).usage.cached_tokens == 0
    reference.close()


def test_who_takes_what_another_one_moved_is_told_so_too(make_engine: MakeEngine) -> None:
    rng = random.Random(11)
    engine = make_engine(cache_ram=256 * MIB)
    a, b, note = words(rng, 200), words(rng, 300), words(rng, 40)
    ask(engine, a + b)
    for more in ((), words(rng, 20), words(rng, 20)):
        assert ask(engine, note + b + more).usage.cached.moved >= 299
    ask(engine, note + b, moved=False)
    usage = ask(engine, note + b).usage
    assert (usage.cached.moved, usage.evaluated_tokens) == (0, 1), "what was read in its place goes first"


def test_what_was_moved_leaves_the_context_when_it_takes_too_much(make_engine: MakeEngine) -> None:
    engine = make_engine(cache_ram=256 * MIB)
    for prompt in sliding(random.Random(12), 4):
        ask(engine, prompt)
    assert engine.stats().residents == 1


def test_other_conversations_are_not_disturbed_while_something_is_moved(
    make_engine: MakeEngine, plain: Model
) -> None:
    rng = random.Random(5)
    engine = make_engine(cache_ram=256 * MIB)
    reference = Reference(plain, n_ctx=4096)
    a, b = words(rng, 200), words(rng, 300)
    ask(engine, a + b)
    with recording() as traces:
        running = engine.submit(Request(a + b, GREEDY, 60, alignable=False, ignore_eos=True))
        moved = [
            engine.submit(
                Request(
                    words(rng, 20 + i) + b + a, GREEDY, 4, alignable=False, ignore_eos=True, reuse_moved=True
                )
            )
            for i in range(5)
        ]
        assert [gather(h).usage.cached.moved for h in moved] == [499] * 5
        gather(running)
        assert distance(traces[id(running), 0], reference) < BOUND
    again = engine.submit(Request(a + b, GREEDY, 8, alignable=False, ignore_eos=True))
    assert gather(again).usage.evaluated_tokens == 1
    reference.close()


def test_nothing_that_was_moved_is_stored(make_engine: MakeEngine, tmp_path: Path) -> None:
    rng = random.Random(6)
    store: dict[str, object] = {"cache_ram": 256 * MIB, "cache_dir": tmp_path}
    engine = make_engine(**store)
    a, b, note = words(rng, 200), words(rng, 300), words(rng, 100)
    ask(engine, a + b)
    assert ask(engine, note + b + note).usage.cached.moved == 300
    engine.close()
    engine = make_engine(**store)
    usage = ask(engine, note + b + note, moved=False).usage
    assert (usage.cached.disk, usage.cached_tokens) == (100, 100)


def dropping(head: Tokens, turns: list[Tokens]) -> Callable[[int], Shorter | None]:
    """As the chat layer does: without as many of the oldest turns as it takes, the last one stays."""

    def shorter(room: int) -> Shorter | None:
        for n in range(len(turns)):
            prompt = head + tuple(token for turn in turns[n:] for token in turn)
            if len(prompt) <= room:
                return Shorter(prompt, tuple(range(1, n + 1)))
        return None

    return shorter


def test_a_reply_goes_on_past_the_limit_without_the_oldest_turns(make_engine: MakeEngine) -> None:
    rng = random.Random(7)
    engine = make_engine(ctx_size=1024, cache_ram=256 * MIB)
    head, turns = words(rng, 100), [words(rng, 100) for _ in range(8)]
    prompt = head + tuple(token for turn in turns for token in turn)
    engine.limit = 1024
    done = ask(engine, prompt, 400, moved=False, shorter=dropping(head, turns))
    assert done.usage.completion_tokens == 400
    assert done.reasons == ["length"]
    assert done.dropped
    assert done.usage.prompt_tokens == 900
    assert done.usage.moved_later > 0
    assert done.usage.cached.moved == 0
    kept = ask(engine, prompt, 400, moved=False, shifts=False, shorter=dropping(head, turns))
    assert (kept.usage.completion_tokens, kept.usage.moved_later) == (400, 0)
    # Without leave to drop anything, the limit is the end.
    done = ask(engine, prompt, 400, moved=False)
    assert done.usage.completion_tokens == 1024 - 900
    assert not done.dropped


def test_where_no_turn_can_go_the_limit_is_the_end(make_engine: MakeEngine) -> None:
    rng = random.Random(8)
    engine = make_engine(ctx_size=512)
    prompt = words(rng, 400)
    done = ask(engine, prompt, 400, moved=False, shorter=dropping((), [prompt]))
    assert done.reasons == ["length"]
    assert done.usage.completion_tokens == 512 - 400 + 1


@pytest.mark.parametrize("name", ["hybrid", "windowed", "recurrent"])
def test_memories_that_can_not_shift_read_again_from_a_checkpoint(
    make_engine: MakeEngine, tmp_path: Path, smollm2_path: Path, name: str
) -> None:
    rng = random.Random(9)
    with loaded(name, tmp_path, smollm2_path) as tiny:
        engine = make_engine(tiny, ctx_size=1024, cache_ram=256 * MIB)
        head, turns = words(rng, 100), [words(rng, 100) for _ in range(8)]
        prompt = head + tuple(token for turn in turns for token in turn)
        reference = Reference(tiny, n_ctx=2048)
        with recording() as traces:
            handle = engine.submit(
                Request(prompt, GREEDY, 300, alignable=False, ignore_eos=True, shorter=dropping(head, turns))
            )
            done = gather(handle)
            assert done.usage.completion_tokens == 300
            assert distance(traces[id(handle), 0], reference) < 0.5
        with pytest.raises(InvalidRequest, match="reuse_moved"):
            ask(engine, prompt)
        engine.close()
        with pytest.raises(MovedUnavailable, match="plain attention"):
            Engine(tiny, EngineConfig(reuse_moved=True))
        reference.close()


def test_what_was_moved_is_the_state_that_it_was_turned_to_its_place(
    make_engine: MakeEngine, plain: Model
) -> None:
    """The same by hand, in a context of its own; and not what a cold reading gives, or this would show nothing."""
    rng = random.Random(10)
    a, b, note, more = (
        list(words(rng, 200)),
        list(words(rng, 300)),
        list(words(rng, 40)),
        list(words(rng, 20)),
    )
    params = ContextParams(n_ctx=2048, n_seq_max=4, n_threads=2, n_threads_batch=2)
    batch = Batch(512)
    with Context(plain, params) as context, Shifter(context) as shifter:
        for seq, tokens in ((0, a + b), (1, note)):
            batch.clear()
            batch.add(tokens, 0, seq, logits_last=False)
            context.decode(batch)
        shifter.append_moved(1, context.export_range(0, 200, 500), 200, 40, 300)
        batch.clear()
        index = batch.add(more, 340, 1, logits_last=True)
        context.decode(batch)
        by_hand = context.logits(index)
    batch.close()
    reference = Reference(plain)
    cold = reference.logits(note + b + more, [])[0]
    reference.close()
    engine = make_engine()
    ask(engine, tuple(a + b))
    with recording() as traces:
        asked = Request(tuple(note + b + more), GREEDY, 1, alignable=False, reuse_moved=True)
        handle = engine.submit(asked)
        assert gather(handle).usage.cached.moved == 300
        got = traces[id(handle), 0].logits[0]
    assert np.abs(got - by_hand).max() < BOUND
    assert np.abs(got - cold).max() > 2 * BOUND
