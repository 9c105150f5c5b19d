"""Which attention a context gets by itself, and how many tokens it computes at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiny.models import loaded

from onceread.engine.config import EngineConfig, context_params
from onceread.native.model import MemoryKind, Model

pytestmark = pytest.mark.model
SMALL = EngineConfig(ctx_size=1024, cache_ram=None)


def test_plain_attention_on_a_cpu_is_without_flash_attention_and_in_small_batches(model: Model) -> None:
    params = context_params(model, SMALL)
    assert (params.flash_attn, params.n_ubatch, params.n_batch) == ("off", 128, 512)


def test_a_context_that_keeps_idle_conversations_is_left_to_llama(model: Model, tmp_path: Path) -> None:
    nothing_behind_it = replace(SMALL, cache_ram=0)
    assert context_params(model, nothing_behind_it).flash_attn == "auto"
    assert context_params(model, replace(nothing_behind_it, cache_dir=tmp_path)).flash_attn == "off"


@pytest.mark.parametrize("wanted", ["on", "off"])
def test_whoever_says_it_gets_it(model: Model, wanted: str) -> None:
    params = context_params(model, replace(SMALL, flash_attn=wanted, micro_batch=48))
    assert (params.flash_attn, params.n_ubatch) == (wanted, 48)


def test_quantized_values_need_it(model: Model) -> None:
    params = context_params(model, replace(SMALL, cache_type_v="q8_0"))
    assert (params.flash_attn, params.n_ubatch) == ("auto", None)


def test_sliding_windows_are_left_to_llama(tmp_path: Path, smollm2_path: Path) -> None:
    with loaded("windowed", tmp_path, smollm2_path) as model:
        assert model.memory_kind is MemoryKind.WINDOWED
        assert context_params(model, SMALL).flash_attn == "auto"


def test_the_choice_does_not_change_with_the_size_of_the_context_but_its_scores_stay_small(
    model: Model,
) -> None:
    """States with and without flash attention are not exchanged: those on disk would be lost."""
    small, large = (context_params(model, replace(SMALL, ctx_size=n)) for n in (1024, 131_072))
    assert small.flash_attn == large.flash_attn == "off"
    assert large.n_ubatch is not None
    assert large.n_ubatch * large.n_ctx * model.heads * 4 <= 256 * 2**20
