"""Micro-benchmarks: one operation each. ``make micro``, or ``python -m pytest bench/micro -k match``.

They assert no times: read the table. Those that need a model use the demo model; let nothing else run meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.demo_model import demo_model_path
from bench.micro.stored import Million

from onceread.native.model import Model

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # the scripts import each other by their names


@pytest.fixture(scope="session")
def million() -> Million:
    return Million()


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with Model.load(demo_model_path()) as loaded:
        yield loaded
