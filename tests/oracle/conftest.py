"""One model, one reference and its noise for all oracle tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model
from tests.oracle.reference import Reference

TEXT = (
    "In 1716 the first tower was built on the island of Little Brewster, near Boston, and a keeper lived "
    "there with his family. He lit candles, later oil lamps, and he walked the rocks at night. "
)


@pytest.fixture(scope="session")
def model(smollm2_path: Path) -> Iterator[Model]:
    with Model.load(smollm2_path) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def reference(model: Model) -> Iterator[Reference]:
    made = Reference(model)
    yield made
    made.close()


@pytest.fixture(scope="session")
def noise(model: Model, reference: Reference) -> float:
    """This model's own scatter between cold runs; state is right within twice of it."""
    tokens = model.vocab.tokenize(TEXT * 3, add_special=True, parse_special=True)
    measured = reference.noise(tokens[:100], tokens[100:116])
    assert 0 < measured < 2, f"noise of {measured}: wrong state, at 3 and more, could not be told from it"
    return measured


@pytest.fixture
def make_engine(model: Model) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**changes: int) -> Engine:
        config = EngineConfig(**({"ctx_size": 8192, "check": True} | changes))
        made.append(Engine(model, config).start())
        return made[-1]

    yield make
    for engine in made:
        engine.close(grace=0)
