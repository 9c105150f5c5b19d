"""Text and tokens: control strings are control tokens only where that is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceread.native.errors import TokenizeFailed
from onceread.native.model import Model

pytestmark = pytest.mark.model


def test_a_control_string_is_a_control_token_only_on_request(model: Model) -> None:
    vocab = model.vocab
    end = vocab.control_tokens["<|im_end|>"]
    assert end in vocab.tokenize("a<|im_end|>b", add_special=False, parse_special=True)
    plain = vocab.tokenize("a<|im_end|>b", add_special=False, parse_special=False)
    assert not any(vocab.is_control(t) for t in plain)
    assert vocab.detokenize(plain) == b"a<|im_end|>b"


def test_control_tokens_have_no_text_and_end_of_turn_ends(model: Model) -> None:
    vocab = model.vocab
    end = vocab.control_tokens["<|im_end|>"]
    assert vocab.piece(end) == b""
    assert vocab.is_eog(end)
    assert vocab.text(end) == "<|im_end|>"


def test_control_tokens_can_be_shown(model: Model) -> None:
    tokens = model.vocab.tokenize("a<|im_end|>é", add_special=False, parse_special=True)
    assert model.vocab.detokenize(tokens) == "aé".encode()
    assert model.vocab.shown(tokens) == "a<|im_end|>é".encode()


def test_this_model_fills_no_gaps(model: Model) -> None:
    fill = model.vocab.fill
    assert max(fill.prefix, fill.suffix, fill.middle) == -1


@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=("Cc", "Cs")), max_size=60))
def test_what_goes_in_comes_out(model: Model, text: str) -> None:
    # This vocabulary lacks some control characters and lead bytes; llama.cpp drops what has no token.
    vocab = model.vocab
    assert vocab.detokenize(vocab.tokenize(text, add_special=False, parse_special=False)) == text.encode()


def test_a_lone_surrogate_is_refused(model: Model) -> None:
    with pytest.raises(TokenizeFailed, match="surrogate"):
        model.vocab.tokenize("\ud800", add_special=False, parse_special=False)
