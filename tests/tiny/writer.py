"""Write a GGUF of a few megabytes: random weights, and the tokenizer of a real model.

Replies of such a model mean nothing; that a cached reply is the uncached one can be held against it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

WIDTH = 64
INNER = 128  # of the feed-forward layers
HEADS = 4
KV_HEADS = 2
HEAD = WIDTH // HEADS
STATE = 16  # of the recurrent layers: numbers for each channel
MIX = 4  # inputs that their convolution sees
TRAINED = 8192  # context length
Array = np.ndarray[Any, np.dtype[np.float32]]


class TinyModel:
    """A writer with the parts that all architectures share."""

    def __init__(self, path: Path, architecture: str, tokenizer: GGUFReader, layers: int) -> None:
        self.file = GGUFWriter(str(path), architecture)
        self.layers = layers
        self._random = np.random.default_rng(20240229)
        self._vocabulary = len(tokenizer.fields["tokenizer.ggml.tokens"].contents())
        self._copy(tokenizer)

    def head(self, kv_heads: int | list[int]) -> None:
        """Sizes and the embedding."""
        file = self.file
        file.add_context_length(TRAINED)
        file.add_embedding_length(WIDTH)
        file.add_block_count(self.layers)
        file.add_feed_forward_length(INNER)
        file.add_head_count(HEADS)
        file.add_head_count_kv(kv_heads)
        file.add_layer_norm_rms_eps(1e-5)
        file.add_rope_freq_base(10000.0)
        file.add_rope_dimension_count(HEAD)
        file.add_vocab_size(self._vocabulary)
        # Large enough for the logits to spread, so that a wrong state shows.
        self.tensor("token_embd", self.matrix(WIDTH, self._vocabulary, 8.0))

    def recurrence(self, heads: int, groups: int) -> None:
        """Sizes of the recurrent layers."""
        file = self.file
        file.add_ssm_conv_kernel(MIX)
        file.add_ssm_inner_size(2 * WIDTH)
        file.add_ssm_state_size(STATE)
        file.add_ssm_time_step_rank(heads)
        file.add_ssm_group_count(groups)

    def matrix(self, inputs: int, outputs: int, scale: float = 1.0) -> Array:
        drawn = self._random.standard_normal((outputs, inputs))
        return (drawn * scale / np.sqrt(inputs)).astype(np.float32)

    def tensor(self, name: str, data: Array) -> None:
        self.file.add_tensor(f"{name}.weight", data)

    def bare(self, name: str, data: Array) -> None:
        """A tensor that is no weight, or a bias, under its full name."""
        self.file.add_tensor(name, data.astype(np.float32))

    def norm(self, name: str, size: int = WIDTH) -> None:
        self.tensor(name, np.ones(size, np.float32))

    def attention(self, layer: str, *, normed: bool) -> None:
        self.tensor(f"{layer}.attn_q", self.matrix(WIDTH, HEADS * HEAD, 2.0))
        self.tensor(f"{layer}.attn_k", self.matrix(WIDTH, KV_HEADS * HEAD, 2.0))
        self.tensor(f"{layer}.attn_v", self.matrix(WIDTH, KV_HEADS * HEAD))
        self.tensor(f"{layer}.attn_output", self.matrix(HEADS * HEAD, WIDTH))
        if normed:
            self.norm(f"{layer}.attn_q_norm", HEAD)
            self.norm(f"{layer}.attn_k_norm", HEAD)

    def feed_forward(self, layer: str, *, normed: bool = True) -> None:
        if normed:
            self.norm(f"{layer}.ffn_norm")
        self.tensor(f"{layer}.ffn_gate", self.matrix(WIDTH, INNER))
        self.tensor(f"{layer}.ffn_up", self.matrix(WIDTH, INNER))
        self.tensor(f"{layer}.ffn_down", self.matrix(INNER, WIDTH))

    def convolution(self, layer: str, length: int) -> None:
        """LFM2's short convolution, whose state is its last inputs."""
        kernel = self._random.standard_normal((WIDTH, length)).astype(np.float32)
        self.tensor(f"{layer}.shortconv.conv", kernel)
        self.tensor(f"{layer}.shortconv.in_proj", self.matrix(WIDTH, 3 * WIDTH))
        self.tensor(f"{layer}.shortconv.out_proj", self.matrix(WIDTH, WIDTH))

    def mamba(self, layer: str, rank: int) -> None:
        """Mamba's selective state space."""
        inner = 2 * WIDTH
        self.tensor(f"{layer}.ssm_in", self.matrix(WIDTH, 2 * inner))
        self._kernel(layer, inner)
        self.tensor(f"{layer}.ssm_x", self.matrix(inner, rank + 2 * STATE))
        self.tensor(f"{layer}.ssm_dt", self.matrix(rank, inner))
        self.bare(f"{layer}.ssm_dt.bias", np.zeros(inner))
        # How fast each number of the state is forgotten: slowly enough for a wrong one to show.
        self.bare(f"{layer}.ssm_a", -np.tile(np.linspace(0.02, 0.5, STATE), (inner, 1)))
        self.bare(f"{layer}.ssm_d", np.ones(inner))
        self.tensor(f"{layer}.ssm_out", self.matrix(inner, WIDTH))

    def mamba2(self, layer: str, heads: int, groups: int) -> None:
        """Mamba 2's, as in Granite 4 H."""
        inner = 2 * WIDTH
        mixed = inner + 2 * groups * STATE
        self.tensor(f"{layer}.ssm_in", self.matrix(WIDTH, inner + mixed + heads))
        self._kernel(layer, mixed)
        self.bare(f"{layer}.ssm_dt.bias", np.zeros(heads))
        self.bare(f"{layer}.ssm_a", -np.linspace(0.02, 0.3, heads).reshape(heads, 1))
        self.bare(f"{layer}.ssm_d", np.ones((heads, 1)))
        self.tensor(f"{layer}.ssm_norm", np.ones((groups, inner // groups), np.float32))
        self.tensor(f"{layer}.ssm_out", self.matrix(inner, WIDTH))

    def delta_net(self, layer: str, heads: int, groups: int) -> None:
        """The gated delta rule, as in Qwen 3.5: ``heads`` of values, ``groups`` of keys."""
        keys, values = groups * STATE, heads * STATE
        self.tensor(f"{layer}.attn_qkv", self.matrix(WIDTH, 2 * keys + values))
        self.tensor(f"{layer}.attn_gate", self.matrix(WIDTH, values))
        kernel = self._random.standard_normal((2 * keys + values, MIX)) * 0.5
        self.tensor(f"{layer}.ssm_conv1d", kernel.astype(np.float32))
        self.bare(f"{layer}.ssm_dt.bias", np.zeros(heads))
        self.bare(f"{layer}.ssm_a", -np.linspace(0.02, 0.3, heads))
        self.tensor(f"{layer}.ssm_beta", self.matrix(WIDTH, heads))
        self.tensor(f"{layer}.ssm_alpha", self.matrix(WIDTH, heads))
        self.norm(f"{layer}.ssm_norm", STATE)
        self.tensor(f"{layer}.ssm_out", self.matrix(values, WIDTH))

    def gated_attention(self, layer: str) -> None:
        """Qwen 3.5's: each query has a gate beside it."""
        self.tensor(f"{layer}.attn_q", self.matrix(WIDTH, 2 * HEADS * HEAD, 2.0))
        self.tensor(f"{layer}.attn_k", self.matrix(WIDTH, KV_HEADS * HEAD, 2.0))
        self.tensor(f"{layer}.attn_v", self.matrix(WIDTH, KV_HEADS * HEAD))
        self.tensor(f"{layer}.attn_output", self.matrix(HEADS * HEAD, WIDTH))
        self.norm(f"{layer}.attn_q_norm", HEAD)
        self.norm(f"{layer}.attn_k_norm", HEAD)

    def _kernel(self, layer: str, channels: int) -> None:
        kernel = self._random.standard_normal((channels, MIX)) * 0.5
        self.tensor(f"{layer}.ssm_conv1d", kernel.astype(np.float32))
        self.bare(f"{layer}.ssm_conv1d.bias", np.zeros(channels))

    def finish(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()

    def _copy(self, tokenizer: GGUFReader) -> None:
        add: dict[GGUFValueType, Callable[[str, Any], None]] = {
            GGUFValueType.ARRAY: self.file.add_array,
            GGUFValueType.STRING: self.file.add_string,
            GGUFValueType.BOOL: lambda key, value: self.file.add_bool(key, bool(value)),
        }
        for key, field in tokenizer.fields.items():
            if key.startswith("tokenizer."):
                write = add.get(field.types[0], lambda k, v: self.file.add_uint32(k, int(v)))
                write(key, field.contents())


def write_windowed(path: Path, tokenizer: GGUFReader) -> None:
    """Gemma 3's shape: five layers with a window of 64 tokens, the sixth with full attention."""
    model = TinyModel(path, "gemma3", tokenizer, layers=6)
    model.head(KV_HEADS)
    model.file.add_key_length(HEAD)
    model.file.add_value_length(HEAD)
    model.file.add_sliding_window(64)
    model.norm("output_norm")
    for i in range(model.layers):
        layer = f"blk.{i}"
        for name in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            model.norm(f"{layer}.{name}")
        model.attention(layer, normed=True)
        model.feed_forward(layer)
    model.finish()


def write_hybrid(path: Path, tokenizer: GGUFReader) -> None:
    """LFM2's shape: convolutions with a recurrent state and attention, in turns."""
    kv_heads = [0, KV_HEADS, 0, KV_HEADS]
    model = TinyModel(path, "lfm2", tokenizer, layers=len(kv_heads))
    model.head(kv_heads)
    model.file.add_shortconv_l_cache(3)
    model.norm("token_embd_norm")
    for i, heads in enumerate(kv_heads):
        layer = f"blk.{i}"
        model.norm(f"{layer}.attn_norm")
        if heads:
            model.attention(layer, normed=True)
        else:
            model.convolution(layer, 3)
        model.feed_forward(layer)
    model.finish()


def write_recurrent(path: Path, tokenizer: GGUFReader) -> None:
    """Mamba's shape: no attention at all."""
    model = TinyModel(path, "mamba", tokenizer, layers=4)
    model.head(0)
    model.recurrence(heads=4, groups=1)
    model.norm("output_norm")
    for i in range(model.layers):
        model.norm(f"blk.{i}.attn_norm")
        model.mamba(f"blk.{i}", rank=4)
    model.finish()


def write_granite(path: Path, tokenizer: GGUFReader) -> None:
    """Granite 4 H's shape: Mamba 2 and attention without positions."""
    kv_heads = [0, KV_HEADS, 0, KV_HEADS]
    model = TinyModel(path, "granitehybrid", tokenizer, layers=len(kv_heads))
    model.head(kv_heads)
    model.recurrence(heads=4, groups=1)
    model.file.add_logit_scale(1.0)
    model.file.add_residual_scale(1.0)
    model.file.add_embedding_scale(1.0)
    model.file.add_attention_scale(1 / np.sqrt(HEAD))
    model.norm("output_norm")
    for i, heads in enumerate(kv_heads):
        layer = f"blk.{i}"
        model.norm(f"{layer}.attn_norm")
        if heads:
            model.attention(layer, normed=False)
        else:
            model.mamba2(layer, heads=4, groups=1)
        model.feed_forward(layer)
    model.finish()


def write_qwen(path: Path, tokenizer: GGUFReader) -> None:
    """Qwen 3.5's shape: three layers of the gated delta rule, then one of attention, whose positions have
    several parts (M-RoPE), so that llama.cpp keeps more about each cell than for the others."""
    model = TinyModel(path, "qwen35", tokenizer, layers=4)
    model.head(KV_HEADS)
    model.file.add_key_length(HEAD)
    model.file.add_value_length(HEAD)
    model.file.add_rope_dimension_sections([HEAD // 8, HEAD // 8, HEAD // 4, 0])
    model.recurrence(heads=8, groups=4)
    model.file.add_uint32("qwen35.full_attention_interval", 4)
    model.norm("output_norm")
    for i in range(model.layers):
        layer = f"blk.{i}"
        model.norm(f"{layer}.attn_norm")
        model.norm(f"{layer}.post_attention_norm")
        if i % 4 == 3:
            model.gated_attention(layer)
        else:
            model.delta_net(layer, heads=8, groups=4)
        model.feed_forward(layer, normed=False)
    model.finish()


WRITERS: dict[str, Callable[[Path, GGUFReader], None]] = {
    "windowed": write_windowed,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "granite": write_granite,
    "qwen": write_qwen,
}
"""All of them, by the name that tests use."""
