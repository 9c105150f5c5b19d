"""Loading: progress, what can be wrong with a file, and that nothing is left behind."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pytest

from onceread.native.context import Context, ContextParams
from onceread.native.errors import LoadCancelled, ModelInvalid, ModelNotFound
from onceread.native.model import MemoryKind, Model

pytestmark = pytest.mark.model


def test_what_the_file_says(model: Model) -> None:
    assert model.architecture == "llama"
    assert model.memory_kind is MemoryKind.PLAIN
    assert model.n_ctx_train == 8192
    assert model.kv_bytes_per_token() == 23040
    assert "<|im_start|>" in (model.chat_template or "")


def test_progress_rises_to_the_end(smollm2_path: Path) -> None:
    seen: list[float] = []
    Model.load(smollm2_path, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_load_can_be_stopped(smollm2_path: Path) -> None:
    with pytest.raises(LoadCancelled):
        Model.load(smollm2_path, progress=lambda share: False)


def test_an_error_in_the_progress_callback_comes_back(smollm2_path: Path) -> None:
    def fail(share: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Model.load(smollm2_path, progress=fail)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        Model.load(tmp_path / "none.gguf")


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "head only", "directory"])
def test_a_file_that_is_no_model(tmp_path: Path, smollm2_path: Path, kind: str) -> None:
    path = tmp_path / "bad.gguf"
    whole = smollm2_path.read_bytes() if kind in ("truncated", "head only") else b""
    if kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(
            {"empty": b"", "text": b"hello", "truncated": whole[: len(whole) // 2], "head only": whole[:200]}[
                kind
            ]
        )
    with pytest.raises(ModelInvalid) as caught:
        Model.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_loading_and_closing_again_and_again_does_not_grow(smollm2_path: Path) -> None:
    process = psutil.Process()
    sizes = []
    for _ in range(20):
        with Model.load(smollm2_path) as model, Context(model, ContextParams(n_ctx=512, n_seq_max=4)):
            pass
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[4] < 20 * 2**20, [s >> 20 for s in sizes]
