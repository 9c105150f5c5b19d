"""Exact mode: bit for bit the cold answer, wherever the state comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import ExactUnavailable
from onceread.engine.request import Request, Usage, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from tests.oracle.conftest import TEXT
from tests.oracle.reference import Logits, recording
from tests.tiny.models import loaded

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
MIB = 1024 * 1024
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def tokens(model: Model) -> tuple[int, ...]:
    return tuple(model.vocab.tokenize(TEXT * 8, add_special=True, parse_special=True)[:330])


def ask(engine: Engine, prompt: tuple[int, ...], n: int = 1) -> tuple[list[Logits], Usage]:
    """Logits of up to 16 steps of each reply."""
    with recording() as traces:
        handle = engine.submit(Request(prompt, GREEDY, 16, n=n, alignable=False, ignore_eos=True))
        usage = gather(handle).usage
        engine.clear({"nobody"})  # returns when what follows the reply is done
        return [np.stack(traces[id(handle), i].logits) for i in range(n)], usage


def steps(prompt: tuple[int, ...], logits: Logits) -> tuple[int, ...]:
    return prompt + tuple(int(row.argmax()) for row in logits[:-1])


def test_bits_are_the_same_from_context_ram_and_disk(
    make_engine: MakeEngine, tokens: tuple[int, ...], tmp_path: Path
) -> None:
    def exact(**more: object) -> Engine:
        return make_engine(exact=True, ctx_size=2048, **more)

    store: dict[str, object] = {"cache_ram": 256 * MIB, "cache_dir": tmp_path}
    first = tokens[:260]
    cold = exact()
    (wanted,), _ = ask(cold, first)
    second = (
        steps(first, wanted) + tokens[260:300]
    )  # its reply was decoded token by token, and is a prompt now
    edited = (*second[:150], 999, *second[151:])
    cold.clear(None)
    (wanted_second,), usage = ask(cold, second)
    assert usage.cached_tokens == 0
    cold.clear(None)
    (wanted_edited,), _ = ask(cold, edited)
    cold.close()

    warm = exact(**store)
    (got,), _ = ask(warm, first)
    assert np.array_equal(got, wanted)
    (got,), usage = ask(warm, first)
    assert (usage.cached.context, usage.evaluated_tokens) == (259, 1)
    assert np.array_equal(got, wanted), "resident, the last token alone"
    (got,), usage = ask(warm, second)
    assert usage.cached.context == 275
    assert np.array_equal(got, wanted_second), "resident, continued"
    (got,), usage = ask(warm, edited)
    assert usage.cached.context == 150
    assert np.array_equal(got, wanted_edited), "resident, cut"
    (got,), usage = ask(warm, second)
    assert usage.cached.memory > 100
    assert np.array_equal(got, wanted_second), "context and RAM"
    ask(warm, tokens[100:130])
    (got,), usage = ask(warm, edited)
    assert (usage.cached.context, usage.evaluated_tokens) == (0, 1)
    assert np.array_equal(got, wanted_edited), "RAM"
    both, usage = ask(warm, first, n=2)
    assert np.array_equal(both[0], wanted)
    assert np.array_equal(both[1], wanted), "the second of two replies"
    warm.close()

    restarted = exact(**store)
    (got,), usage = ask(restarted, second)
    assert (usage.cached.disk, usage.evaluated_tokens) == (len(second) - 1, 1)
    assert np.array_equal(got, wanted_second), "disk"


def test_without_exact_mode_the_bits_differ(make_engine: MakeEngine, tokens: tuple[int, ...]) -> None:
    """A negative control: else the test above would show nothing."""
    engine = make_engine(ctx_size=2048, flash_attn="off")
    (cold,), _ = ask(engine, tokens[:260])
    second = steps(tokens[:260], cold) + tokens[260:300]
    (warm,), _ = ask(engine, second)
    engine.clear(None)
    (wanted,), _ = ask(engine, second)
    assert not np.array_equal(warm, wanted)


def test_state_of_the_default_mode_is_not_taken(
    make_engine: MakeEngine, tokens: tuple[int, ...], tmp_path: Path
) -> None:
    store: dict[str, object] = {"cache_ram": 64 * MIB, "cache_dir": tmp_path, "ctx_size": 2048}
    engine = make_engine(flash_attn="off", **store)
    ask(engine, tokens[:100])
    engine.close()
    _, usage = ask(make_engine(exact=True, **store), tokens[:100])
    assert usage.cached_tokens == 0


def test_requests_are_served_one_at_a_time_up_to_the_last_cell(
    make_engine: MakeEngine, tokens: tuple[int, ...]
) -> None:
    engine = make_engine(exact=True, ctx_size=256)
    handles = [
        engine.submit(Request(tokens[i : i + 200], GREEDY, None, alignable=False, ignore_eos=True))
        for i in range(3)
    ]
    for handle in handles:
        assert gather(handle).usage.completion_tokens == 256 - 1 - 200


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [("windowed", {}, "sliding window"), ("recurrent", {}, "recurrent"), (None, {"flash_attn": "on"}, "off")],
)
def test_where_it_can_not_be_had_it_is_refused(
    model: Model,
    smollm2_path: Path,
    tmp_path: Path,
    name: str | None,
    settings: dict[str, str],
    why: str,
) -> None:
    config = EngineConfig(exact=True, **settings)  # type: ignore[arg-type]
    if name is None:
        with pytest.raises(ExactUnavailable, match=why):
            Engine(model, config)
        return
    with loaded(name, tmp_path, smollm2_path) as tiny, pytest.raises(ExactUnavailable, match=why):
        Engine(tiny, config)
