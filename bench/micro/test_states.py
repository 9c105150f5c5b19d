"""States: out of the context and into it, 256 and 2,048 tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from onceread.engine.config import default_threads
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model

READ = 2048
SENTENCE = "Sailors followed fires on hills, and every village kept its own watch over the sea. "


@pytest.fixture(scope="module")
def context(model: Model) -> Iterator[Context]:
    """With a sequence of ``READ`` tokens in 0."""
    threads = default_threads()
    params = ContextParams(2 * READ + 512, 4, n_threads=threads, n_threads_batch=threads)
    tokens = model.vocab.tokenize(SENTENCE * 200, add_special=True, parse_special=True)[:READ]
    batch = Batch(512)
    with Context(model, params) as made:
        for start in range(0, READ, 512):
            batch.clear()
            batch.add(tokens[start : start + 512], start, 0, logits_last=False)
            made.decode(batch)
        yield made
    batch.close()


@pytest.mark.parametrize("n", [256, READ])
def test_export(benchmark: BenchmarkFixture, context: Context, n: int) -> None:
    blob = benchmark(context.export_range, 0, READ - n, READ)
    benchmark.extra_info["bytes a token"] = round(len(blob) / n)


@pytest.mark.parametrize("n", [256, READ])
def test_import(benchmark: BenchmarkFixture, context: Context, n: int) -> None:
    blob = context.export_range(0, 0, n)
    benchmark.pedantic(
        context.import_range,
        setup=lambda: (context.drop(1), ((1, blob, 0, n), {}))[1],
        rounds=20,
    )
    assert context.length(1) == n
    context.drop(1)
