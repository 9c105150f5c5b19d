"""``onceread bench`` on the command line, as far as nothing is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceread.cli.errors import CommandError
from onceread.cli.main import app

runner = CliRunner()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--peer", "vllm"], "no peer vllm"),
        (["--workload", "typing"], "no workload typing"),
        (["--quick", "--workload", "agent"], "none of these workloads has sizes for quick"),
        (["--url", "ftp://x"], "not a URL"),
        (["--out", "model.gguf"], "--out model.gguf: File exists"),
        (["--out", "model.gguf/folder"], "--out model.gguf/folder: Not a directory"),
        (["compare", "a", "b"], "No such file"),
        (["report", "nowhere"], "No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    flags: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.gguf"
    model.touch()
    options = [] if flags[0] in ("compare", "report") else ["--model", str(model), "--work", str(tmp_path)]
    result = runner.invoke(app, ["bench", *options, *flags])
    assert isinstance(result.exception, CommandError)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_small_simulation_tells_hits_and_bytes() -> None:
    result = runner.invoke(app, ["bench", "scale", "--conversations", "40"])
    assert result.exit_code == 0, result.output
    assert "40 conversations, " in result.output
    assert "A conversation adds " in result.output
