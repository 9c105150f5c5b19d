"""`onceread chat` and `onceread complete` with a model in their own process, and what the next process reuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SYSTEM = "You keep the lighthouse of a small island, and answer in one short sentence. " * 6


def run(*arguments: str, state: Path, stdin: str = "") -> str:
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-m", "onceread", *arguments, "--ctx-size", "1024", "--max-tokens", "8"]
    done = subprocess.run(
        command, input=stdin, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.model
def test_a_chat_in_one_process_is_known_to_the_next(tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    said = run(
        "chat",
        "--session",
        str(chat),
        "--system",
        SYSTEM,
        stdin="Who lights the lamp?\nWhy?\n",
        state=tmp_path,
    )
    messages = json.loads(chat.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert said == "".join(m["content"].rstrip("\n") + "\n" for m in messages if m["role"] == "assistant")

    found: dict[str, Any] = json.loads(
        run("complete", "--chat", "--json", "--system", SYSTEM, "Who lights the lamp?", state=tmp_path)
    )
    details = found["usage"]["prompt_tokens_details"]
    assert details["cached_tokens_by_source"]["disk"] == found["usage"]["prompt_tokens"] - 1
    assert found["timings"]["prompt_n"] == 1
    assert found["usage"]["completion_tokens"] <= 8


@pytest.mark.model
def test_complete_writes_what_its_grammar_allows(tmp_path: Path) -> None:
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "lamp" | "glass"')
    text = run("complete", "--grammar", str(grammar), "What is broken?", state=tmp_path)
    assert text in ("lamp", "glass")


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    done = subprocess.run(
        [sys.executable, "-m", "onceread", "complete", str(broken), "hello"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("onceread: ")


def test_help_waits_for_neither_llama_cpp_nor_a_terminal_library() -> None:
    program = (
        "import sys, onceread.cli.main\n"
        "print(sorted({'llama_cpp', 'prompt_toolkit', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
