"""The engine over its store: what left the context, and what a restart took, is not read again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.engine.conftest import GREEDY

from onceread.cache import chunkfile
from onceread.cache.names import namespace_id
from onceread.engine.engine import Engine
from onceread.engine.loading import Loading
from onceread.engine.reply import Reply
from onceread.engine.request import Completed, Request, TextEvent, Usage, gather
from onceread.native.model import Model

pytestmark = pytest.mark.model

MakeEngine = Callable[..., Engine]
MIB = 1024 * 1024
BYTES_PER_TOKEN = 23_059  # of this model's state, as f16


@pytest.fixture
def engine(make_engine: MakeEngine, tmp_path: Path) -> Engine:
    return make_engine(cache_ram=256 * MIB, cache_dir=tmp_path / "cache")


@pytest.fixture
def restart(make_engine: MakeEngine, tmp_path: Path) -> Callable[[Engine], Engine]:
    def restart(engine: Engine, **changes: object) -> Engine:
        engine.close()
        return make_engine(**{"cache_ram": 256 * MIB, "cache_dir": tmp_path / "cache"} | changes)

    return restart


def ask(engine: Engine, prompt: list[int], n: int = 4, **more: object) -> Completed:
    return gather(engine.submit(Request(tuple(prompt), GREEDY, n, **more)))


def settle(engine: Engine) -> None:
    """Wait until the engine has done what follows the last reply."""
    engine.clear({"nobody"})


def by_source(usage: Usage) -> dict[str, int]:
    cached = usage.cached
    assert usage.cached_tokens == cached.context + cached.memory + cached.disk
    return {name: n for name in ("context", "memory", "disk") if (n := getattr(cached, name))}


def test_after_a_restart_every_kind_of_prompt_hits_to_the_token(
    engine: Engine, restart: Callable[..., Engine], tokens: list[int]
) -> None:
    path = tokens[:600]
    assert ask(engine, path).usage.evaluated_tokens == 600
    edited = [*path[:300], 999, *path[301:320]]
    cases = {
        "the same again": (path, 1),
        "a strict prefix": (path[:450], 1),
        "shorter than a chunk": (path[:40], 1),
        "exactly one chunk": (path[:256], 1),
        "exactly one chunk and a token": ([*path[:256], 999], 1),
        "one token": (path[:1], 1),
        "an edit in the middle of a chunk": (edited, 20),
        "more at the end": ([*path, 999, 998], 2),
        "nothing of it": ([998, *path[:9]], 10),
    }
    for name, (prompt, evaluated) in cases.items():
        engine = restart(engine)
        usage = ask(engine, prompt, 1).usage
        assert (usage.evaluated_tokens, usage.prompt_tokens) == (evaluated, len(prompt)), name
        assert by_source(usage) == ({"disk": len(prompt) - evaluated} if len(prompt) > evaluated else {}), (
            name
        )


def test_what_the_context_drops_comes_back_from_ram(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(cache_ram=256 * MIB, resident_cells=0)
    first = ask(engine, tokens[:500])
    ask(engine, [5, *tokens[:300]])
    settle(engine)
    again = ask(engine, tokens[:500])
    assert by_source(again.usage) == {"memory": 499}
    assert again.texts == first.texts
    settle(engine)
    assert engine.stats().residents == 1


def test_the_context_and_the_store_serve_one_prompt_together(
    make_engine: MakeEngine, tokens: list[int]
) -> None:
    engine = make_engine(cache_ram=256 * MIB, resident_cells=0)
    ask(engine, tokens[:700])
    ask(engine, [*tokens[:300], 999])
    settle(engine)
    assert by_source(ask(engine, tokens[:700]).usage) == {"context": 300, "memory": 399}


def test_a_reply_that_was_broken_off_is_kept_as_far_as_it_was_read(
    make_engine: MakeEngine, tokens: list[int]
) -> None:
    engine = make_engine(cache_ram=256 * MIB, resident_cells=0)
    handle = engine.submit(Request(tuple(tokens[:300]), GREEDY, 200))
    for event in handle:
        if isinstance(event, TextEvent) and event.tokens >= 10:
            handle.cancel()
    ask(engine, [5, *tokens[:300]])
    settle(engine)
    assert by_source(ask(engine, tokens[:300]).usage) == {"memory": 299}


def test_nothing_is_shared_between_namespaces_from_no_tier(
    engine: Engine, restart: Callable[..., Engine], tokens: list[int]
) -> None:
    prompt = tokens[:300]
    running = engine.submit(Request(tuple(prompt), GREEDY, 60, namespace="a"))
    for event in running:
        if isinstance(event, TextEvent):
            break
    assert ask(engine, prompt, namespace="b", explain=True).explanation is None
    gather(running)
    states = {"running and then resident": engine}
    engine = restart(engine)
    ask(engine, [7, 8, 9], namespace="a")
    states["on disk"] = engine
    for i, (where, one) in enumerate(states.items()):
        del where
        if one.state == "ok" and not one._closing:
            done = ask(one, prompt, namespace=f"c{i}", explain=True)
            assert done.usage.cached_tokens == 0
            assert done.explanation is None
    assert ask(engine, prompt, namespace="a").usage.cached_tokens == 299
    done = ask(engine, prompt, namespace="d", explain=True)  # now it is in RAM and resident
    assert done.usage.cached_tokens == 0
    assert done.explanation is None
    assert engine.store is not None
    shown = engine.store.paths({namespace_id("d")}, 10)
    assert {path.namespace for path in shown.paths} <= {namespace_id("d").hex()[:12]}


def test_explain_says_where_a_prompt_left_the_known_path(
    model: Model, engine: Engine, restart: Callable[..., Engine]
) -> None:
    def prompt(text: str) -> list[int]:
        return model.vocab.tokenize(f"<|im_start|>user\n{text}", add_special=True, parse_special=True)

    ask(engine, prompt("The keeper lit the lamp at nine and slept."), 1)
    engine = restart(engine)
    said = ask(engine, prompt("The keeper lit the fire at nine."), 1, explain=True).explanation
    assert said is not None
    assert said.shared.endswith("The keeper lit the")
    assert said.known.startswith(" lamp at nine")
    assert said.prompt == " fire at nine."
    assert said.position == len(prompt("The keeper lit the"))
    assert ask(engine, prompt("The"), 1).explanation is None


@pytest.mark.soak
def test_fifty_conversations_take_little_more_than_their_distinct_tokens(
    make_engine: MakeEngine,
    tokens: list[int],
    tmp_path: Path,
    soak_scale: float,
    record_property: Callable[[str, object], None],
) -> None:
    chats = 50 if soak_scale == 1 else 5
    engine = make_engine(cache_ram=1024 * MIB, cache_dir=tmp_path / "cache", resident_cells=0)
    system = tokens[:1500]
    handles = [
        engine.submit(Request((*system, *(3000 + 97 * i + j for j in range(199))), GREEDY, 2))
        for i in range(chats)
    ]
    for handle in handles:
        gather(handle)
    assert engine.store is not None
    assert engine.wait_remembered("default", handles[-1].request.prompt, 10)
    assert engine.store.wait_written(30)
    stats = engine.store.stats()
    distinct = 1500 + chats * 200
    assert distinct - chats <= stats.memory.tokens <= distinct
    for tier, held in (("RAM", stats.memory.bytes), ("disk", stats.disk.bytes)):
        ratio = held / (distinct * BYTES_PER_TOKEN)
        record_property(f"bytes in {tier}", f"{held:,} ({ratio:.3f} of the distinct tokens')")
        assert ratio <= 1.15


def test_running_streams_go_on_while_another_loads(
    make_engine: MakeEngine, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(cache_ram=256 * MIB, resident_cells=0)
    ask(engine, tokens[:1500])
    ask(engine, [5, 6, 7])
    settle(engine)
    streaming = engine.submit(Request((8, 9, 10), GREEDY, 60, ignore_eos=True))
    for event in streaming:
        if isinstance(event, TextEvent):
            break
    scheduler = engine._scheduler
    assert scheduler is not None
    loads: list[int] = []
    plain = Loading.turn

    def turn(self: Loading, active: list[Reply], clock: int) -> bool:
        before = sum(len(r.sequence) for r in scheduler.active if r.sequence is not None)
        progress = plain(self, active, clock)
        loads.append(sum(len(r.sequence) for r in scheduler.active if r.sequence is not None) - before)
        return progress

    monkeypatch.setattr(Loading, "turn", turn)
    assert by_source(ask(engine, tokens[:1500]).usage) == {"memory": 1499}
    assert max(loads) <= 256, "more than one chunk was loaded between two steps of a stream"
    assert len([n for n in loads if n]) >= 6
    streaming.cancel()


def test_a_disk_that_does_not_answer_costs_a_reading_and_no_more(
    engine: Engine, restart: Callable[..., Engine], tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(engine, tokens[:300])
    engine = restart(engine, io_timeout=0.2)
    answers = threading.Event()
    plain = chunkfile.read

    def read(*args: object) -> bytes:
        answers.wait(60)
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(chunkfile, "read", read)
    stalled = ask(engine, tokens[:300])
    assert stalled.usage.evaluated_tokens == 300
    assert stalled.texts == first.texts
    assert engine.store is not None
    assert engine.store.stats().disk.state.startswith("failed: a chunk was not read within 0.2 s")
    assert ask(engine, [5, 6, 7]).usage.evaluated_tokens == 3
    answers.set()


def test_characters_in_rotation_evaluate_only_what_is_new_from_the_second_visit_on(
    make_engine: MakeEngine, tokens: list[int]
) -> None:
    engine = make_engine(cache_ram=256 * MIB, ctx_size=768)
    chats = [[500 + i, *tokens[20 * i : 20 * i + 200]] for i in range(6)]
    for chat in chats:
        ask(engine, chat, 1)
    for visit in range(2):
        for chat in chats:
            chat += [900 + visit, 901, 902]
            assert ask(engine, chat, 1).usage.evaluated_tokens == 3
    stats = engine.stats()
    assert stats.evictions_total > 6
    assert stats.prompt_evaluated_total == 6 * 201 + 12 * 3
    assert stats.cached_memory_total > stats.cached_context_total


@pytest.mark.soak
def test_memory_stays_within_the_budget_and_a_constant(
    model: Model,
    make_engine: MakeEngine,
    tmp_path: Path,
    soak_scale: float,
    soak_seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    budget, constant = 24 * MIB, 96 * MIB
    engine = make_engine(
        ctx_size=1024, cache_ram=budget, cache_disk=48 * MIB, cache_dir=tmp_path, resident_cells=256
    )
    rng = random.Random(soak_seed)
    past: list[list[int]] = [[rng.randrange(100, 40_000) for _ in range(40)]]
    ask(engine, past[0], 1)
    process = psutil.Process()
    before = most = process.memory_info().rss
    total = 2000 if soak_scale == 1 else 150
    for _ in range(total):
        prompt = rng.choice(past)[: rng.randrange(1, 60)] + [rng.randrange(100, 40_000) for _ in range(30)]
        ask(engine, prompt, 1)
        past = [*past[-40:], prompt]
        most = max(most, process.memory_info().rss)
    assert engine.store is not None
    stats = engine.store.stats()
    assert stats.memory.evictions_total > 0
    assert stats.disk.evictions_total > 0
    record_property("requests", total)
    record_property(
        "RSS", f"{before // MIB} MiB, at most {most // MIB} MiB, with a budget of {budget // MIB} MiB"
    )
    assert most <= before + budget + constant


def test_clear_forgets_in_every_tier(
    engine: Engine, restart: Callable[..., Engine], tokens: list[int]
) -> None:
    ask(engine, tokens[:300], namespace="a")
    ask(engine, tokens[:300], namespace="b")
    assert engine.clear({"a"}) > 2 * 300 * BYTES_PER_TOKEN * 0.9
    assert ask(engine, tokens[:300], namespace="a").usage.cached_tokens == 0
    engine.clear(None)
    engine = restart(engine)
    assert ask(engine, tokens[:300], namespace="b").usage.cached_tokens == 0
