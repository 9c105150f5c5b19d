"""A tiny encoder of BERT's shape, with a small vocabulary of words and letters: for embeddings, not for text."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

WIDTH = 64
INNER = 128
HEADS = 4
LAYERS = 2
TRAINED = 128
CLS, SEP = 2, 3
_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = "the a cat dog keeper house light sea lamp sat on in and red blue".split()  # noqa: SIM905 - prose
# As llama.cpp wants them: what begins a word has a mark, what goes on in one has none.
_PIECES = [f"▁{piece}" for piece in [*_WORDS, *string.ascii_lowercase, ".", ","]] + [*string.ascii_lowercase]
VOCABULARY = list(dict.fromkeys(_MARKS + _PIECES))
_CONTROL, _NORMAL = 3, 1


def write_encoder(path: Path, pooling: int | None = 1) -> None:
    """``pooling`` as llama.cpp counts: 1 mean, 2 cls, 3 last, 4 rank; None leaves it out."""
    file = GGUFWriter(str(path), "bert")
    rng = np.random.default_rng(20240229)
    file.add_context_length(TRAINED)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_layer_norm_eps(1e-12)
    file.add_causal_attention(False)
    if pooling is not None:
        file.add_uint32("bert.pooling_type", pooling)
    _add_vocabulary(file)

    def matrix(name: str, outputs: int, inputs: int, scale: float = 1.0) -> None:
        drawn = rng.standard_normal((outputs, inputs)) * scale / np.sqrt(inputs)
        file.add_tensor(f"{name}.weight", drawn.astype(np.float32))

    def biased(name: str, outputs: int, inputs: int, scale: float = 1.0) -> None:
        matrix(name, outputs, inputs, scale)
        _add_zeros(file, name, outputs)

    def norm(name: str) -> None:
        file.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        _add_zeros(file, name, WIDTH)

    matrix("token_embd", len(VOCABULARY), WIDTH, 8.0)
    matrix("token_types", 2, WIDTH)
    matrix("position_embd", TRAINED, WIDTH)
    norm("token_embd_norm")
    for i in range(LAYERS):
        layer = f"blk.{i}"
        for name in ("attn_q", "attn_k", "attn_v"):
            biased(f"{layer}.{name}", WIDTH, WIDTH, 2.0)
        biased(f"{layer}.attn_output", WIDTH, WIDTH)
        norm(f"{layer}.attn_output_norm")
        biased(f"{layer}.ffn_up", INNER, WIDTH)
        biased(f"{layer}.ffn_down", WIDTH, INNER)
        norm(f"{layer}.layer_output_norm")
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _add_zeros(file: Any, name: str, size: int) -> None:
    file.add_tensor(f"{name}.bias", np.zeros(size, np.float32))


def _add_vocabulary(file: GGUFWriter) -> None:
    file.add_vocab_size(len(VOCABULARY))
    file.add_tokenizer_model("bert")
    file.add_tokenizer_pre("default")
    file.add_token_list(VOCABULARY)
    file.add_token_types([_CONTROL if piece in _MARKS else _NORMAL for piece in VOCABULARY])
    file.add_token_type_count(2)
    file.add_pad_token_id(0)
    file.add_unk_token_id(1)
    file.add_bos_token_id(CLS)
    file.add_eos_token_id(SEP)
    file.add_sep_token_id(SEP)
    file.add_mask_token_id(4)
