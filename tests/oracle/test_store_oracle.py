"""The oracle over all tiers: small budgets, restarts, eviction everywhere, and nobody ever reads another's words."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from onceread.cache.contract import CacheStats
from onceread.engine.engine import Engine
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from tests.oracle.clients import Client
from tests.oracle.conftest import TEXT
from tests.oracle.reference import Reference, distance, greedy_agrees, recording
from tests.oracle.twin import Twin

pytestmark = [pytest.mark.model, pytest.mark.soak]

GREEDY = SamplingParams(temperature=0)
REPLY = 8
BYTES_PER_TOKEN = 23_500  # of this model's state, what a chunk takes beside it included
CONVERSATION = 300  # tokens
RECORD = Callable[[str, object], None]


def within_budget(stats: CacheStats) -> bool:
    return stats.memory.bytes <= stats.memory.budget and stats.disk.bytes <= stats.disk.budget


def test_through_restarts_and_eviction_replies_are_as_if_cold(
    model: Model,
    make_engine: Callable[..., Engine],
    reference: Reference,
    noise: float,
    tmp_path: Path,
    soak_scale: float,
    soak_seed: int,
    record_property: RECORD,
) -> None:
    rng = random.Random(soak_seed)
    budgets = {
        "ctx_size": 2048,
        "cache_ram": 4 * CONVERSATION * BYTES_PER_TOKEN,
        "cache_disk": 10 * CONVERSATION * BYTES_PER_TOKEN,
        "cache_dir": tmp_path,
        "resident_cells": 512,
    }
    client = Client(rng, model.vocab.tokenize(TEXT * 8, add_special=True, parse_special=True), [])
    twin = Twin(cells=10 * CONVERSATION)
    reused = could = restarts = 0
    sources = {"context": 0, "memory": 0, "disk": 0}
    worst = 0.0
    engine = make_engine(**budgets)
    total = max(50, int(200 * soak_scale))
    with recording() as traces:
        for i in range(total):
            if i and i % 25 == 0:
                engine.close()
                engine = make_engine(**budgets)
                restarts += 1
            request = Request(client.prompt()[:400], GREEDY, REPLY, alignable=False)
            handle = engine.submit(request)
            usage = gather(handle).usage
            could += len(request.prompt) - twin.evaluated(request.prompt)
            reused += usage.cached_tokens
            assert usage.prompt_tokens == usage.evaluated_tokens + usage.cached_tokens == len(request.prompt)
            for source in sources:
                sources[source] += getattr(usage.cached, source)
            trace = traces.pop((id(handle), 0))
            assert tuple(trace.prompt) == request.prompt
            if i % 2 == 0 or usage.cached.disk:
                worst = max(worst, distance(trace, reference))
                assert worst <= 2 * noise
                assert greedy_agrees(trace, reference, noise)
            assert engine.store is not None
            assert within_budget(engine.store.stats())
            written = request.prompt + tuple(trace.tokens[: usage.completion_tokens - 1])
            twin.read(written)
            client.past.append(written)
    assert all(sources.values()), f"a tier served nothing: {sources}"
    assert reused >= 0.95 * could
    record_property("requests and restarts", f"{total}, {restarts}")
    record_property("reused of what the twin reuses", f"{reused} of {could}")
    record_property("from", sources)
    record_property("worst logit distance", f"{worst:.2f} (noise {noise:.2f})")


def marker(rng: random.Random) -> str:
    return "".join(rng.choice("BCDFGHKLMNPRSTVWZ") for _ in range(4)) + f"-{rng.randrange(1000, 9999)}"


def question(mark: str, filler: str) -> str:
    line = f"The secret word of this house is {mark}.\n"
    return filler + line * 4 + "The secret word of this house is"


def test_eight_clients_never_see_each_others_words(
    model: Model,
    make_engine: Callable[..., Engine],
    reference: Reference,
    noise: float,
    tmp_path: Path,
    soak_scale: float,
    soak_seed: int,
    record_property: RECORD,
) -> None:
    rng = random.Random(soak_seed)
    clients = 8
    fillers = [TEXT, TEXT * 2, TEXT[:90]]
    houses = [(f"tenant {i}", marker(rng), fillers[i % 3]) for i in range(clients)]

    def tokens(mark: str, filler: str) -> tuple[int, ...]:
        return tuple(model.vocab.tokenize(question(mark, filler), add_special=True, parse_special=True))

    cold = make_engine(ctx_size=2048)
    told = [gather(cold.submit(Request(tokens(m, f), GREEDY, 12))).texts[0] for _, m, f in houses]
    cold.close()
    own = sum(mark in text for (_, mark, _), text in zip(houses, told, strict=True))
    assert own >= 0.9 * clients, f"the test can't see a leak: {own} of {clients} repeat their own marker"

    # So small that each request evicts from every tier.
    engine = make_engine(
        ctx_size=1024,
        parallel=4,
        cache_ram=350 * BYTES_PER_TOKEN,
        cache_disk=700 * BYTES_PER_TOKEN,
        cache_dir=tmp_path,
        resident_cells=256,
    )
    total = max(60, int(400 * soak_scale))
    done = checked = 0
    repeated = 0
    with recording() as traces:
        while done < total:
            burst = [rng.choice(houses) for _ in range(min(clients, total - done))]
            handles = [
                engine.submit(Request(tokens(mark, filler), GREEDY, 12, namespace=name))
                for name, mark, filler in burst
            ]
            for (name, mark, _), handle in zip(burst, handles, strict=True):
                text = gather(handle).texts[0]
                repeated += mark in text
                for other, foreign, _ in houses:
                    assert other == name or foreign not in text, f"{name} was told the word of {other}"
                trace = traces.pop((id(handle), 0))
                if done % 4 == 0:
                    assert distance(trace, reference) <= 2 * noise
                    checked += 1
                done += 1
            assert engine.store is not None
            assert within_budget(engine.store.stats())
    assert repeated >= 0.9 * total
    stats = engine.store.stats()
    assert engine.stats().evictions_total > 0
    assert stats.memory.evictions_total > 0
    assert stats.disk.evictions_total > 0
    record_property("requests", f"{total}, {checked} held against a fresh context")
    record_property("own marker repeated", f"{repeated} of {total}")
    record_property(
        "evictions",
        f"{engine.stats().evictions_total} context, {stats.memory.evictions_total} RAM, "
        f"{stats.disk.evictions_total} disk",
    )
