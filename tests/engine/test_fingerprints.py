"""State computed with one RoPE, adapter or override is never found by an engine with another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tiny.lora import write_lora
from tests.tiny.plain import plain_model
from tests.tiny.writer import TRAINED

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import ContextLengthExceeded
from onceread.engine.request import Request, gather
from onceread.native.adapter import Adapter
from onceread.native.model import Model
from onceread.native.model_params import ModelParams
from onceread.native.params import SamplingParams
from onceread.native.rope import Rope

pytestmark = pytest.mark.model

PROMPT = tuple((i * 7919) % 40_000 + 100 for i in range(90))
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def plain(folder: Path, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(folder, smollm2_path) as made:
        yield made


def evaluated(model: Model, directory: Path, **changes: Any) -> int:
    """Of the prompt, by a new engine over a directory that others may have written."""
    config = EngineConfig(ctx_size=512, cache_ram=64 * MIB, cache_dir=directory, check=True, **changes)
    with Engine(model, config) as engine:
        return gather(engine.submit(Request(PROMPT, SamplingParams(temperature=0), 2))).usage.evaluated_tokens


def test_state_of_another_rope_or_adapter_is_a_miss_and_its_own_a_hit(
    plain: Model, folder: Path, tmp_path: Path
) -> None:
    first, second = (write_lora(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    kinds: list[dict[str, Any]] = [
        {},
        {"rope": Rope(freq_base=500_000.0)},
        {"rope": Rope(freq_base=500_001.0)},
        {"rope": Rope(freq_scale=0.5)},
        {"rope": Rope(scaling_type=2, freq_scale=0.5, yarn_orig_ctx=256)},
        {"rope": Rope(scaling_type=2, freq_scale=0.5, yarn_orig_ctx=128)},
        {"adapter": Adapter(first)},
        {"adapter": Adapter(first, 0.5)},
        {"adapter": Adapter(second)},
    ]
    assert [evaluated(plain, tmp_path, **kind) for kind in kinds] == [len(PROMPT)] * len(kinds)
    assert [evaluated(plain, tmp_path, **kind) for kind in kinds] == [1] * len(kinds)


def test_an_adapter_counts_by_its_content_and_not_by_its_name(plain: Model, tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    cache = tmp_path / "cache"
    assert evaluated(plain, cache, adapter=Adapter(write_lora(path, seed=1))) == len(PROMPT)
    assert evaluated(plain, cache, adapter=Adapter(write_lora(path, seed=2))) == len(PROMPT)
    again = write_lora(tmp_path / "renamed.gguf", seed=1)
    assert evaluated(plain, cache, adapter=Adapter(again)) == 1


def test_state_of_other_metadata_is_a_miss(plain: Model, tmp_path: Path) -> None:
    assert evaluated(plain, tmp_path) == len(PROMPT)
    params = ModelParams(kv_overrides=(("llama.rope.freq_base", 500_000.0),))
    with Model.load(plain.path, params=params) as changed:
        assert evaluated(changed, tmp_path) == len(PROMPT)
        assert evaluated(changed, tmp_path) == 1
    assert evaluated(plain, tmp_path) == 1


def test_what_leaves_the_result_alone_shares_its_state(plain: Model, tmp_path: Path) -> None:
    assert evaluated(plain, tmp_path) == len(PROMPT)
    assert evaluated(plain, tmp_path, micro_batch=32) == 1
    with Model.load(plain.path, params=ModelParams(use_mmap=False)) as loaded:
        assert evaluated(loaded, tmp_path) == 1


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (Rope(), TRAINED),
        (Rope(scaling_type=0), TRAINED),
        (Rope(freq_scale=1.0), TRAINED),
        (Rope(freq_scale=0.5), 2 * TRAINED),
        (Rope(scaling_type=2), 2 * TRAINED),
        (Rope(freq_base=1e6), 2 * TRAINED),
    ],
    ids=["as trained", "no scaling", "a scale of 1", "half the scale", "YaRN", "a larger base"],
)
def test_positions_beyond_the_trained_ones_need_explicit_scaling(
    plain: Model, rope: Rope, limit: int
) -> None:
    with Engine(plain, EngineConfig(ctx_size=2 * TRAINED, parallel=1, max_residents=1, rope=rope)) as engine:
        assert engine.limit == limit
        with pytest.raises(ContextLengthExceeded, match=str(limit)):
            engine.submit(Request((5,) * limit))
