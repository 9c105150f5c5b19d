"""Models whose memory can't be cut anywhere: less is reused, and what is reused is right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, RequestHandle, gather
from onceread.native.model import MemoryKind, Model
from onceread.native.params import SamplingParams
from tests.oracle.reference import Reference, distance, recording
from tests.tiny.writer import write_hybrid, write_windowed

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
# Noise of these F32 models is near 0.1; a wrong state was seen to be off by 2 and more, up to 50.
BOUND = 0.5


@pytest.fixture(scope="module", params=["windowed", "hybrid"])
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    {"windowed": write_windowed, "hybrid": write_hybrid}[request.param](path, GGUFReader(str(smollm2_path)))
    with Model.load(path) as model:
        yield model


def words(rng: random.Random, n: int) -> tuple[int, ...]:
    return tuple(rng.randrange(100, 40_000) for _ in range(n))


def test_random_requests_answer_as_if_cold(tiny: Model, soak_seed: int) -> None:
    assert tiny.memory_kind is not MemoryKind.PLAIN
    rng = random.Random(soak_seed)
    reference = Reference(tiny)
    past: list[tuple[int, ...]] = []
    with Engine(tiny, EngineConfig(ctx_size=768, check=True)) as engine, recording() as traces:
        kept: list[RequestHandle] = []  # a handle's id is its name in the traces
        for burst in range(12):
            handles = []
            for _ in range(rng.randint(1, 4)):
                kind = rng.choice(["new", "go on", "again", "branch"]) if past else "new"
                path = rng.choice(past) if past else ()
                cut = rng.randrange(1, len(path)) if path else 0
                prompt = {
                    "new": words(rng, rng.randint(20, 90)),
                    "go on": path + words(rng, 15),
                    "again": path,
                    "branch": path[:cut] + words(rng, 15),
                }[kind][:400]
                # Long replies push cells out of their windows; two replies fork.
                length = 70 if burst % 4 == 0 else 8
                asked = Request(
                    prompt, GREEDY, length, n=rng.choice([1, 1, 2]), alignable=False, ignore_eos=True
                )
                handles.append(engine.submit(asked))
            kept += handles
            for handle in handles:
                gather(handle)
                for index in range(handle.request.n):
                    assert distance(traces[(id(handle), index)], reference) < BOUND
                past.append(handle.request.prompt + tuple(traces[(id(handle), 0)].tokens[:7]))
    reference.close()


def test_the_next_turn_evaluates_only_what_is_new(tiny: Model) -> None:
    rng = random.Random(1)
    with Engine(tiny, EngineConfig(ctx_size=768, check=True)) as engine, recording() as traces:
        prompt = words(rng, 100)
        for turn in range(4):
            handle = engine.submit(Request(prompt, GREEDY, 10, alignable=False, ignore_eos=True))
            usage = gather(handle).usage
            # The last sampled token was not evaluated, so it is new with the turn after it.
            assert usage.evaluated_tokens == (100 if turn == 0 else 20 + 1)
            trace = traces.pop((id(handle), 0))
            prompt += (*trace.tokens, int(trace.logits[-1].argmax()))[:10] + words(rng, 20)
