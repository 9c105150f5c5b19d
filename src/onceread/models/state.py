"""What a model remembers of its prompt, by its metadata: the kind of memory, and the bytes of its state.

llama.cpp tells the kind only once a model is loaded, and the bytes only once something was computed. The figures
here are held against its own on models of each kind (tests/models/test_state.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onceread.models.gguf_header import Header

Kind = Literal["plain attention", "sliding window", "recurrent", "hybrid"]

_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
# Architectures whose windowed layers llama.cpp knows by itself: every so many layers one has full attention, the
# last of them unless `first`. A pattern in the metadata goes before.
_WINDOWS: dict[str, tuple[int, bool]] = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "llama4": (4, False),
    "mellum": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
_UNGROUPED = {"mamba", "jamba"}
_WINDOW_BY_PATTERN = {"gemma4", "granite-swa", "mimo2", "step35", "laguna"}
_WINDOW_DEFAULT = {"gemma2": 4096, "exaone4": 4096, "exaone-moe": 128, "llama4": 8192, "smallthinker": 4096}
_FULL_EVERY = 4  # hybrids that don't list their layers, as Qwen 3.5: each fourth layer has attention
_ATTENTION_EVERYWHERE = {"falcon-h1"}  # hybrids with both halves in each layer
MOST_LAYERS = 512  # llama.cpp's own limit
_CELL = 12  # bytes that a state has about each cell beside its numbers: position, owners
_CELL_MROPE = 24  # with several positions for each token
_STATE_NUMBER = 4  # bytes: recurrent states are F32


@dataclass(frozen=True, slots=True)
class StateSize:
    """What one sequence's state takes, in bytes, with f16 keys and values."""

    kind: Kind
    per_token: int  # of full attention: grows with the text, can be cut anywhere
    checkpoint: int  # of a window that is full, or of the recurrent state; 0 for plain attention
    window: int  # tokens of the sliding window, 0 if there is none
    layers_full: int  # that remember every token
    layers_windowed: int
    layers_recurrent: int
    is_estimate: bool  # the architecture is not one whose layers are known here
    per_window_token: int = 0  # of the windowed layers

    def for_context(self, tokens: int) -> int:
        """Bytes of a text of so many tokens."""
        if self.window:
            return tokens * self.per_token + min(tokens, self.window) * self.per_window_token
        return tokens * self.per_token + self.checkpoint


def state_size(header: Header, *, bytes_k: float = 2.0, bytes_v: float = 2.0) -> StateSize:
    """The kind of memory and the size of its state. ``bytes_k`` and ``bytes_v``: of one number, 2 for f16."""
    layers = _Layers(header)
    cell = _CELL_MROPE if header.numbers(header.of("rope.dimension_sections")) else _CELL
    full = sum(layers.row(i, bytes_k, bytes_v) for i in layers.full)
    windowed = sum(layers.row(i, bytes_k, bytes_v) for i in layers.windowed)
    recurrent = len(layers.recurrent) * layers.recurrent_numbers * _STATE_NUMBER if layers.recurrent else 0
    kind: Kind = "plain attention"
    if layers.recurrent:
        kind = "hybrid" if layers.full or layers.windowed else "recurrent"
    elif layers.windowed:
        kind = "sliding window"
    window = layers.window if layers.windowed else 0
    return StateSize(
        kind=kind,
        per_token=int(full) + cell if full else 0,
        checkpoint=int(recurrent) + (int(window * (windowed + cell)) if windowed else 0),
        window=window,
        layers_full=len(layers.full),
        layers_windowed=len(layers.windowed),
        layers_recurrent=len(layers.recurrent),
        is_estimate=layers.is_estimate,
        per_window_token=int(windowed) + cell if windowed else 0,
    )


class _Layers:
    """Which layers remember how."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._architecture = header.architecture
        self.is_estimate = False
        n = header.number(header.of("block_count")) - header.number(header.of("nextn_predict_layers"))
        self._n = min(max(n, 0), MOST_LAYERS)  # a file can claim any number
        heads = header.numbers(header.of("attention.head_count_kv")) or header.numbers(
            header.of("attention.head_count")
        )
        self._kv_heads = heads if len(heads) > 1 else (heads or [1]) * self._n
        self.window = header.number(
            header.of("attention.sliding_window"), _WINDOW_DEFAULT.get(self._architecture, 0)
        )
        self.recurrent = self._recurrent()
        attending = [
            i
            for i in range(self._n)
            if self._heads(i) and (i not in self.recurrent or self._architecture in _ATTENTION_EVERYWHERE)
        ]
        slides = self._slides()
        self.windowed = [i for i in attending if slides[i]]
        self.full = [i for i in attending if not slides[i]]

    def row(self, layer: int, bytes_k: float, bytes_v: float) -> float:
        """Bytes of one token's keys and values in one layer."""
        header = self._header
        if header.number(header.of("attention.kv_lora_rank")):
            # Latent attention: one compressed key a token, of which the value is a part.
            return header.number(header.of("attention.key_length")) * bytes_k
        width = header.number(header.of("embedding_length")) // max(
            header.number(header.of("attention.head_count"), 1), 1
        )
        suffix = "_swa" if layer in self.windowed else ""
        key = header.number(header.of(f"attention.key_length{suffix}")) or header.number(
            header.of("attention.key_length"), width
        )
        value = header.number(header.of(f"attention.value_length{suffix}")) or header.number(
            header.of("attention.value_length"), width
        )
        return self._heads(layer) * (key * bytes_k + value * bytes_v)

    @property
    def recurrent_numbers(self) -> int:
        """Numbers of one layer's recurrent state: what its convolution has seen, and the state proper."""
        header = self._header
        width = header.number(header.of("embedding_length"))
        if head := header.number(header.of("wkv.head_size")):
            return (header.number(header.of("token_shift_count"), 2) + head) * width
        if cache := header.number(header.of("shortconv.l_cache")):
            return width * (cache - 1)
        inner = header.number(header.of("ssm.inner_size"))
        state = header.number(header.of("ssm.state_size"))
        # The first Mamba has no groups, whatever its metadata says.
        groups = 0 if self._architecture in _UNGROUPED else header.number(header.of("ssm.group_count"))
        seen = max(header.number(header.of("ssm.conv_kernel")) - 1, 0)
        if header.number(header.of("kda.head_dim")) or not inner:
            self.is_estimate = True
        return seen * (inner + 2 * groups * state) + state * inner

    def _heads(self, layer: int) -> int:
        return self._kv_heads[layer] if layer < len(self._kv_heads) else 0

    def _recurrent(self) -> set[int]:
        header = self._header
        every = set(range(self._n))
        if self._architecture in _RECURRENT or self._architecture in _ATTENTION_EVERYWHERE:
            return every
        listed = header.metadata.get(header.of("attention.recurrent_layers"))
        if isinstance(listed, list):
            return {i for i, one in enumerate(listed[: self._n]) if one}
        if not any(
            header.number(header.of(key)) for key in ("ssm.conv_kernel", "shortconv.l_cache", "kda.head_dim")
        ):
            return set()
        if 0 in self._kv_heads:
            feed_forward = header.numbers(header.of("feed_forward_length"))
            alone = len(feed_forward) > 1  # then a layer without attention may be a feed-forward one
            return {i for i in every if not self._heads(i) and not (alone and feed_forward[i : i + 1] != [0])}
        interval = header.number(header.of("full_attention_interval")) or _FULL_EVERY
        return {i for i in every if (i + 1) % interval}

    def _slides(self) -> list[bool]:
        """For each layer: does it forget what is behind the window?"""
        header = self._header
        if not self.window or self._architecture == "phi3":  # llama.cpp gives phi3's window no effect
            return [False] * self._n
        pattern = header.metadata.get(header.of("attention.sliding_window_pattern"))
        if isinstance(pattern, list) and len(pattern) >= self._n:
            return [bool(one) for one in pattern[: self._n]]
        known = _WINDOWS.get(self._architecture)
        if known is None:
            # Many architectures have a window in their metadata that llama.cpp does not use.
            self.is_estimate = self._architecture in _WINDOW_BY_PATTERN
            return [False] * self._n
        every, first = known
        if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
            every = pattern
        return [(i % every != 0) if first else (i % every < every - 1) for i in range(self._n)]
