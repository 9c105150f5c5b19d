"""A model of a few megabytes for what is about the library and not about its replies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader
from tests.tiny.plain import write_plain

from onceread import Llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """Random weights, and the tokenizer and the chat template of the demo model."""
    path = tmp_path_factory.mktemp("library") / "tiny.gguf"
    write_plain(path, GGUFReader(str(smollm2_path)))
    return path


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Iterator[Llama]:
    with Llama(tiny_path, n_ctx=4096, cache_ram="64MiB", verbose=False) as loaded:
        yield loaded
