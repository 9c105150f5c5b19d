"""The demo model behind HTTP, for real clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.live import Live, live_server


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    with live_server(max_tokens_limit=None, api_keys=["anna=sk-anna"]) as running:
        yield running
