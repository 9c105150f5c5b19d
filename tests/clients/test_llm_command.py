"""The command `llm`, pointed at the server by its own configuration: a prompt, a conversation, a schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.live import Live

pytestmark = pytest.mark.model

Run = Callable[..., str]


@pytest.fixture
def run(live: Live, tmp_path: Path) -> Run:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: any\n  api_base: {live.url}/v1\n  api_key_name: here\n"
        "  supports_schema: true\n"
    )
    (tmp_path / "keys.json").write_text(json.dumps({"here": "sk-anna"}))
    # No other plugins: one of them is the demo model's own.
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("how", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_a_prompt(run: Run, how: list[str]) -> None:
    assert run("-m", "here", "Name a river.", "-o", "max_tokens", "8", *how)


def test_a_conversation_is_read_once(run: Run, live: Live) -> None:
    options = ("-o", "max_tokens", "8", "-o", "temperature", "0")
    run(
        "-m",
        "here",
        "Name three rivers, please, and say where they flow.",
        "-s",
        "You know rivers well.",
        *options,
    )
    assert live.idle()
    before = live.engine.stats()
    run("-c", "And a fourth one?", *options)
    assert live.idle()
    after = live.engine.stats()
    prompt = after.prompt_tokens_total - before.prompt_tokens_total
    evaluated = after.prompt_evaluated_total - before.prompt_evaluated_total
    assert prompt > 40
    # The new message and its header; the end of the turn before, and the last token that was sampled in it.
    assert evaluated <= 18


def test_a_schema(run: Run) -> None:
    said = run("-m", "here", "A dog.", "--schema", "good bool, age int", "-o", "max_tokens", "80")
    dog = json.loads(said)
    assert isinstance(dog["good"], bool)
    assert isinstance(dog["age"], int)
