"""Which file is served, and that one larger than the free memory is refused before it is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from onceread.cli.errors import CommandError
from onceread.cli.model_file import check_memory, find_model, gib


def test_none_named_is_the_demo_model(smollm2_path: Path) -> None:
    assert find_model(None) == smollm2_path


def test_the_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert find_model(Path("~/m.gguf")) == tmp_path / "m.gguf"


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "big.gguf"
    with file.open("wb") as sparse:
        sparse.truncate(5 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=3 * 2**30))
    with pytest.raises(
        CommandError, match=r"too little memory: big.gguf takes 5.0 GiB and 3.0 GiB are free; use"
    ):
        check_memory(file, gpu_layers=0)
    check_memory(file, gpu_layers=-1)  # then it may be the GPU's memory that counts


@pytest.mark.parametrize(("size", "text"), [(96_000_000, "92 MiB"), (3 * 2**30, "3.0 GiB")])
def test_sizes_for_people(size: int, text: str) -> None:
    assert gib(size) == text
