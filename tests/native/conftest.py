"""A model and small contexts for the native tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tiny.models import NAMES, Bench, loaded

from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model


@pytest.fixture(scope="session")
def model(smollm2_path: Path) -> Iterator[Model]:
    with Model.load(smollm2_path) as loaded:
        yield loaded


@pytest.fixture
def make_context(model: Model) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def make(**changes: int | str) -> Context:
        params = {"n_ctx": 512, "n_seq_max": 6, "n_threads": 2, "n_threads_batch": 2} | changes
        made.append(Context(model, ContextParams(**params)))
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def batch() -> Iterator[Batch]:
    made = Batch(512)
    yield made
    made.close()


@pytest.fixture(scope="module", params=NAMES)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> Iterator[Model]:
    """Each of the tiny models whose memory can't be cut."""
    folder = tmp_path_factory.getbasetemp() / "tiny"
    folder.mkdir(exist_ok=True)
    with loaded(request.param, folder, smollm2_path) as made:
        yield made


@pytest.fixture
def bench(tiny: Model) -> Iterator[Bench]:
    made = Bench(tiny)
    yield made
    made.close()
