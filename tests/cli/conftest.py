"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the developer's cache."""
    monkeypatch.setenv("ONCEREAD_CACHE_DIR", str(tmp_path / "own cache"))
