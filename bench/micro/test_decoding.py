"""Our own work for each decoded token, outside of llama_decode and the C sampler. The promise: under 200 µs."""

from __future__ import annotations

import pytest
from bench.overhead import Overhead
from pytest_benchmark.fixture import BenchmarkFixture

from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model

TOKENS = 100


@pytest.mark.parametrize("streams", [1, 4])
def test_our_python_for_a_token(benchmark: BenchmarkFixture, model: Model, streams: int) -> None:
    """The table shows whole replies; ``extra_info`` (``--benchmark-json``) and the last lines what is ours of them."""
    with Overhead() as overhead, Engine(model, EngineConfig(ctx_size=4096)) as engine:
        rows = []
        benchmark.pedantic(
            lambda: rows.append(overhead.of_reply(engine, model, streams, TOKENS, len(rows))),
            rounds=4,
            warmup_rounds=1,
        )
    ours = sorted(row[2] for row in rows)[len(rows) // 2]
    benchmark.extra_info["our microseconds a token"] = round(ours, 1)
    print(f"\n{streams} streams: {ours:.0f} µs a token are ours")
