"""A model and small contexts for the native tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
