"""Embeddings by `Llama`: of models that write, and of models that only embed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny.encoder import write_encoder

from onceread import Llama
from onceread.engine.errors import ContextLengthExceeded
from onceread.library.errors import InvalidParameter
from onceread.native.errors import ModelUnsupported

pytestmark = pytest.mark.model

LONG = "sea " * 3000


def test_a_model_that_writes_has_a_vector_for_each_token(llm: Llama) -> None:
    vectors, tokens = llm.embed("The sea and the land", return_count=True)
    assert np.shape(vectors) == (tokens, llm.n_embd())
    assert llm.pooling_type() == 0
    (one, other), both = llm.embed(["The sea", "The sea and the land"], return_count=True)
    assert len(one) + len(other) == both
    assert np.allclose(other, vectors, atol=1e-2)


def test_pooled_it_has_one_which_is_their_mean(llm: Llama, tiny_path: Path) -> None:
    with Llama(tiny_path, embedding=True, pooling_type=1, verbose=False) as pooling:
        vector = pooling.embed("The sea and the land")
        assert np.shape(vector) == (pooling.n_embd(),)
        assert np.allclose(vector, np.mean(llm.embed("The sea and the land"), axis=0), atol=1e-2)
        assert np.isclose(np.linalg.norm(pooling.embed("The sea", normalize=True)), 1)
        # What writes was not needed so far; it is there when it is.
        answer = pooling("The sea", max_tokens=1)
        assert isinstance(answer, dict)
        assert answer["usage"]["completion_tokens"] == 1


def test_what_is_too_long_is_cut_or_refused(tiny_path: Path) -> None:
    with Llama(tiny_path, embedding=True, verbose=False) as llm:
        limit = llm._host.known().embeddings.plan().limit  # type: ignore[union-attr]
        text = LONG * (1 + limit // 3000)
        with pytest.raises(ContextLengthExceeded):
            llm.embed(text, truncate=False)


def test_what_is_no_text_is_refused(llm: Llama) -> None:
    with pytest.raises(InvalidParameter, match="input"):
        llm.embed([1, 2])  # type: ignore[list-item]


def test_a_model_that_only_embeds_does_and_says_that_it_can_not_write(tmp_path: Path) -> None:
    path = tmp_path / "encoder.gguf"
    write_encoder(path)
    with Llama(path, embedding=True, verbose=False) as llm:
        assert len(llm.create_embedding(["The sea", "The land"])["data"]) == 2
        for _ in range(2):
            with pytest.raises(ModelUnsupported, match="can't write text"):
                llm("The sea")
        llm.embed("The sea")
