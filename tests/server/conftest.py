"""Fixtures for tests of the HTTP faces: a fake engine for what needs no model, a live server for the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app
from tests.server.live import Live, live_server


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> TestClient:
    """An app over the fake engine, called without a network."""
    return TestClient(fake_app(engine), raise_server_exceptions=False)


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The demo model behind HTTP, with a store in RAM."""
    with live_server(engine={"cache_ram": 128 * 2**20}) as running:
        yield running
