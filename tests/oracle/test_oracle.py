"""Every reply from cache is the reply without it, and exactly what is new is evaluated."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onceread.engine.engine import Engine
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from tests.oracle.clients import Client
from tests.oracle.conftest import TEXT
from tests.oracle.reference import Reference, distance, greedy_agrees, recording
from tests.oracle.twin import Twin

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
REPLY = 12


@pytest.mark.soak
def test_random_requests_cost_what_is_new_and_answer_as_if_cold(
    model: Model,
    make_engine: Callable[..., Engine],
    reference: Reference,
    noise: float,
    soak_scale: float,
    soak_seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    rng = random.Random(soak_seed)
    engine = make_engine(max_residents=200)
    client = Client(rng, model.vocab.tokenize(TEXT * 8, add_special=True, parse_special=True), [])
    twin = Twin()
    total = max(25, int(200 * soak_scale))
    done = 0
    worst = 0.0
    with recording() as traces:
        while done < total:
            requests = []
            for _ in range(min(rng.randint(1, 4), total - done)):
                sampling = GREEDY if rng.random() < 0.7 else SamplingParams(seed=rng.randrange(1000))
                prompt = client.prompt()[:700]
                requests.append(Request(prompt, sampling, REPLY, alignable=False))
            expected = []
            for request in requests:
                expected.append(twin.evaluated(request.prompt))
                twin.read(request.prompt)  # what is being read is followed, not read twice
            handles = [engine.submit(request) for request in requests]
            answers = [gather(handle) for handle in handles]
            for request, handle, answer, wanted in zip(requests, handles, answers, expected, strict=True):
                assert answer.usage.prompt_tokens == len(request.prompt)
                assert answer.usage.evaluated_tokens == wanted
                trace = traces.pop((id(handle), 0))
                assert tuple(trace.prompt) == request.prompt
                worst = max(worst, distance(trace, reference))
                assert worst <= 2 * noise
                if request.sampling is GREEDY:
                    assert greedy_agrees(trace, reference, noise)
                # The last sampled token has not been evaluated, so it is not yet known.
                written = request.prompt + tuple(trace.tokens[: answer.usage.completion_tokens - 1])
                twin.read(written)
                client.past.append(written)
            done += len(requests)
    stats = engine.stats()
    assert stats.evictions_total == 0
    record_property("requests", total)
    record_property("prompt tokens", stats.prompt_tokens_total)
    record_property("evaluated", stats.prompt_evaluated_total)
    record_property("worst logit distance", f"{worst:.2f} (noise {noise:.2f})")


@pytest.mark.soak
def test_under_eviction_almost_all_that_could_be_reused_is(
    model: Model,
    make_engine: Callable[..., Engine],
    reference: Reference,
    noise: float,
    soak_scale: float,
    soak_seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    rng = random.Random(soak_seed)
    engine = make_engine(ctx_size=512)
    client = Client(rng, model.vocab.tokenize(TEXT * 8, add_special=True, parse_special=True), [])
    twin = Twin(cells=512)
    reused = could = 0
    with recording() as traces:
        for i in range(max(25, int(200 * soak_scale))):
            request = Request(client.prompt()[:400], GREEDY, REPLY, alignable=False)
            handle = engine.submit(request)
            usage = gather(handle).usage
            could += len(request.prompt) - twin.evaluated(request.prompt)
            reused += usage.cached_tokens
            trace = traces.pop((id(handle), 0))
            if i % 3 == 0:
                assert distance(trace, reference) <= 2 * noise
            written = request.prompt + tuple(trace.tokens[: usage.completion_tokens - 1])
            twin.read(written)
            client.past.append(written)
    assert engine.stats().evictions_total > 0
    assert reused >= 0.95 * could
    record_property("evictions", engine.stats().evictions_total)
    record_property("reused of what the twin reuses", f"{reused} of {could}")


def test_namespaces_share_nothing(model: Model, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    prompt = tuple(model.vocab.tokenize(TEXT, add_special=True, parse_special=True))
    running = engine.submit(Request(prompt, GREEDY, 60, namespace="a", ignore_eos=True))
    beside = gather(engine.submit(Request(prompt, GREEDY, 4, namespace="b")))
    assert beside.usage.cached_tokens == 0
    gather(running)
    assert gather(engine.submit(Request(prompt, GREEDY, 4, namespace="c"))).usage.cached_tokens == 0
    assert gather(engine.submit(Request(prompt, GREEDY, 4, namespace="a"))).usage.evaluated_tokens == 1
