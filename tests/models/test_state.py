"""Kind of memory and bytes of state, by metadata, against llama.cpp's own on a tiny model of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.gguf_files import write_gguf
from tests.tiny.models import NAMES, Bench, loaded, taken, words

from onceread.models.gguf_header import read_header
from onceread.models.state import StateSize, state_size
from onceread.native.context import KV_TYPE_BYTES, Context, ContextParams
from onceread.native.model import MemoryKind, Model

_SEGMENT_HEAD = 160  # bytes: what a blob has beside its tokens, in these few layers
_CHECKPOINT_HEAD = 160
_KINDS = {
    "sliding window": (MemoryKind.WINDOWED, False),
    "recurrent": (MemoryKind.RECURRENT, False),
    "hybrid": (MemoryKind.RECURRENT, True),
}


def of(path: Path, **bytes_of: float) -> StateSize:
    return state_size(read_header(path), **bytes_of)


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_what_llama_cpp_exports(
    name: str, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> None:
    folder = tmp_path_factory.getbasetemp()
    with loaded(name, folder, smollm2_path) as model:
        state = of(model.path)
        assert (model.memory_kind, model.is_hybrid) == _KINDS[state.kind]
        assert state.window == model.window
        assert not state.is_estimate
        bench = Bench(model, n_seq_max=3)
        try:
            bench.read(words(200))
            ((_, _, segment),), checkpoint = taken(bench.context, 200)
        finally:
            bench.close()
    assert 0 <= len(segment) - 200 * state.per_token <= _SEGMENT_HEAD
    assert 0 <= len(checkpoint) - state.checkpoint <= _CHECKPOINT_HEAD
    with Model.load(model.path, weights=False) as outline:
        assert (outline.memory_kind, outline.is_hybrid) == _KINDS[state.kind]
        assert outline.window == state.window


@pytest.mark.model
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_plain_attention(kv_type: str, smollm2_path: Path) -> None:
    size = KV_TYPE_BYTES[kv_type]
    with Model.load(smollm2_path) as model:
        state = of(model.path, bytes_k=size, bytes_v=size)
        assert (state.kind, state.checkpoint, state.window) == ("plain attention", 0, 0)
        params = ContextParams(n_ctx=256, n_seq_max=2, n_batch=64, type_k=kv_type, type_v=kv_type)
        with Context(model, params) as context:
            bench_read(context, words(64))
            blob = context.export_range(0, 0, 64)
    assert 0 <= len(blob) - 64 * state.per_token <= 24 + 30 * 24  # each layer says a few things of itself


def bench_read(context: Context, tokens: list[int]) -> None:
    from onceread.native.batch import Batch

    batch = Batch(len(tokens))
    batch.add(tokens, 0, 0, logits_last=True)
    context.decode(batch)
    batch.close()


@pytest.mark.model
def test_a_model_without_its_weights_tells_what_the_whole_one_does(smollm2_path: Path) -> None:
    with Model.load(smollm2_path, weights=False) as outline, Model.load(smollm2_path) as model:
        for name in ("metadata", "architecture", "n_ctx_train", "n_params", "chat_template", "memory_kind"):
            assert getattr(outline, name) == getattr(model, name), name
        assert outline.vocab.size == model.vocab.size


@pytest.mark.parametrize(
    ("architecture", "numbers", "layers"),
    [
        # (full, windowed, recurrent), by the published configurations' patterns
        pytest.param("gemma2", {"block_count": 26}, (13, 13, 0), id="every second layer"),
        pytest.param(
            "gemma3", {"block_count": 26, "attention__sliding_window": 512}, (4, 22, 0), id="one in six"
        ),
        pytest.param(
            "gpt-oss", {"block_count": 24, "attention__sliding_window": 128}, (12, 12, 0), id="gpt-oss"
        ),
        pytest.param(
            "llama", {"block_count": 4, "attention__sliding_window": 4096}, (4, 0, 0), id="unused window"
        ),
        pytest.param("phi3", {"block_count": 4, "attention__sliding_window": 2047}, (4, 0, 0), id="phi 3"),
        pytest.param(
            "gemma4",
            {
                "block_count": 3,
                "attention__sliding_window": 512,
                "attention__sliding_window_pattern": [True, True, False],
            },
            (1, 2, 0),
            id="a pattern in the file",
        ),
        pytest.param(
            "qwen3next",
            {"block_count": 48, "ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 16},
            (12, 0, 36),
            id="one in four has attention",
        ),
    ],
)
def test_which_layers_remember_how(
    tmp_path: Path, architecture: str, numbers: dict[str, object], layers: tuple[int, int, int]
) -> None:
    state = of(write_gguf(tmp_path / "m.gguf", architecture, **numbers))
    assert (state.layers_full, state.layers_windowed, state.layers_recurrent) == layers


def test_a_window_stops_growing(tmp_path: Path) -> None:
    state = of(write_gguf(tmp_path / "m.gguf", "gemma2", attention__sliding_window=100))
    assert state.for_context(1000) == 1000 * state.per_token + 100 * state.per_window_token
    assert state.for_context(50) == 50 * (state.per_token + state.per_window_token)
