"""The tier on disk against the disk's own rate: the same bytes as plain files, written under a name and renamed.

Reads come from the system's cache, in both cases: what is compared is our work, not the platter's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from tests.cache.disks import FINGERPRINT, ONCE, packed, record

from onceread.cache.contract import CHUNK
from onceread.cache.disk import DiskTier

BLOB = np.random.default_rng(1).bytes(CHUNK * 23_040)  # a chunk of the demo model's
ROUNDS = 40


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    made = DiskTier(tmp_path / "tier", 1 << 34, FINGERPRINT, "bench")
    yield made
    made.close()


def _records() -> Iterator[object]:
    for i in count():
        yield record(packed(*range(i, i + CHUNK)), 0, CHUNK)


def test_write_a_chunk(benchmark: BenchmarkFixture, tier: DiskTier) -> None:
    records = _records()
    benchmark.pedantic(tier.write, setup=lambda: ((next(records), BLOB, ONCE), {}), rounds=ROUNDS)


def test_write_a_plain_file(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    numbers = count()

    def write(n: int) -> None:
        (tmp_path / "new").write_bytes(BLOB)
        (tmp_path / "new").rename(tmp_path / str(n))

    benchmark.pedantic(write, setup=lambda: ((next(numbers),), {}), rounds=ROUNDS)


def test_read_a_chunk(benchmark: BenchmarkFixture, tier: DiskTier) -> None:
    one = record(packed(*range(CHUNK)), 0, CHUNK)
    tier.write(one, BLOB, ONCE)
    assert benchmark(tier.read, one) == BLOB


def test_read_a_plain_file(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BLOB)
    assert benchmark((tmp_path / "file").read_bytes) == BLOB
