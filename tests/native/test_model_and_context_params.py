"""Parameters of loading, of RoPE and of adapters: each does what it says, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny.lora import write_lora
from tests.tiny.plain import plain_model

from onceread.native.adapter import Adapter
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.errors import AdapterInvalid, ContextInvalid, ModelInvalid
from onceread.native.model import Model
from onceread.native.model_params import ModelParams
from onceread.native.rope import SCALINGS, Rope

pytestmark = pytest.mark.model

PARAMS = ContextParams(n_ctx=512, n_seq_max=2, n_batch=64)
TOKENS = [(i * 7919) % 40_000 + 100 for i in range(60)]
NOISE = 0.1
Logits = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def plain(folder: Path, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(folder, smollm2_path) as made:
        yield made


def logits(model: Model, **changes: Any) -> Logits:
    """Behind the tokens, in a context made with these changes."""
    batch = Batch(64)
    try:
        with Context(model, replace(PARAMS, **changes)) as context:
            index = batch.add(TOKENS, 0, 0, logits_last=True)
            context.decode(batch)
            return context.logits(index)
    finally:
        batch.close()


def off(a: Logits, b: Logits) -> float:
    return float(np.abs(a - b).max())


@pytest.fixture(scope="module")
def as_trained(plain: Model) -> Logits:
    return logits(plain)


ROPES = {
    "another base": Rope(freq_base=500_000.0),
    "a linear scale": Rope(scaling_type=SCALINGS["linear"], freq_scale=0.25),
    "YaRN": Rope(scaling_type=SCALINGS["yarn"], freq_scale=0.25, yarn_orig_ctx=64),
}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_rope_values_reach_llama_cpp(plain: Model, as_trained: Logits, rope: Rope) -> None:
    assert off(logits(plain, rope=rope), as_trained) > NOISE


def test_values_that_say_what_the_model_says_change_nothing(plain: Model, as_trained: Logits) -> None:
    assert off(logits(plain, rope=Rope(freq_base=10_000.0, freq_scale=1.0)), as_trained) < NOISE
    assert off(logits(plain, n_ubatch=16), as_trained) < NOISE


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope": Rope(scaling_type=9)}, "rope_scaling_type"),
        ({"rope": Rope(freq_base=-1.0)}, "rope_freq_base"),
        ({"rope": Rope(yarn_orig_ctx=-1)}, "yarn_orig_ctx"),
        ({"n_ubatch": 0}, "n_ubatch"),
    ],
    ids=["no such scaling", "a negative base", "a negative context", "an empty slice"],
)
def test_values_that_mean_nothing_are_refused_by_name(plain: Model, changes: Any, named: str) -> None:
    with pytest.raises(ContextInvalid, match=named):
        logits(plain, **changes)


def test_an_adapter_changes_the_logits_by_its_scale(plain: Model, folder: Path, as_trained: Logits) -> None:
    path = write_lora(folder / "one.gguf")
    whole = logits(plain, adapter=Adapter(path))
    half = logits(plain, adapter=Adapter(path, 0.5))
    assert off(whole, as_trained) > NOISE
    assert off(half, as_trained) > NOISE
    assert off(half, whole) > NOISE
    assert off(logits(plain, adapter=Adapter(path, 0.0)), as_trained) < NOISE
    assert off(logits(plain), as_trained) == 0, "a context without it has none of it"


def test_adapters_that_are_none_are_refused(plain: Model, folder: Path) -> None:
    with pytest.raises(AdapterInvalid, match="no such LoRA adapter"):
        logits(plain, adapter=Adapter(folder / "missing.gguf"))
    damaged = folder / "damaged.gguf"
    damaged.write_bytes(b"GGUF and nothing else")
    for path in (damaged, write_lora(folder / "wide.gguf", width=128), plain.path):
        with pytest.raises(AdapterInvalid, match="no LoRA adapter for this model"):
            logits(plain, adapter=Adapter(path))


def test_metadata_can_be_overridden(plain: Model, as_trained: Logits) -> None:
    params = ModelParams(kv_overrides=(("llama.rope.freq_base", 500_000.0), ("general.note", "a text")))
    with Model.load(plain.path, params=params) as changed:
        assert off(logits(changed), as_trained) > NOISE
        assert off(logits(changed), logits(plain, rope=Rope(freq_base=500_000.0))) < NOISE


@pytest.mark.parametrize(
    "params", [ModelParams(use_mmap=False), ModelParams(split_mode=0)], ids=["read", "not split"]
)
def test_weights_come_the_same_whichever_way(plain: Model, as_trained: Logits, params: ModelParams) -> None:
    with Model.load(plain.path, params=params) as loaded:
        assert off(logits(loaded), as_trained) < NOISE


def test_a_vocabulary_alone_tokenizes_and_computes_nothing(plain: Model) -> None:
    with Model.load(plain.path, params=ModelParams(vocab_only=True)) as words:
        text = "Two words"
        assert words.vocab.tokenize(text, add_special=False, parse_special=False) == plain.vocab.tokenize(
            text, add_special=False, parse_special=False
        )
        with pytest.raises(ContextInvalid, match="vocab_only"):
            logits(words)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (ModelParams(split_mode=7), "split_mode"),
        (ModelParams(tensor_split=(1.0,) * 1000), "tensor_split"),
        (ModelParams(kv_overrides=(("k" * 200, 1),)), "kv_overrides"),
        (ModelParams(kv_overrides=(("key", "v" * 200),)), "longer than"),
        (ModelParams(kv_overrides=(("key", [1]),)), "list"),  # type: ignore[arg-type]
    ],
    ids=["no such mode", "more devices than there can be", "a long key", "a long text", "a list"],
)
def test_ways_of_loading_that_can_t_be_are_refused(plain: Model, params: ModelParams, named: str) -> None:
    with pytest.raises(ModelInvalid, match=named):
        Model.load(plain.path, params=params)
