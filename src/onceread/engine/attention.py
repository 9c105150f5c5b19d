"""Which of llama.cpp's two ways to compute attention a context takes, and how many tokens at a time.

On a CPU llama.cpp's flash attention reads all keys once for each token, unless 64 tokens and more come at a time. So
next turns (a few dozen new tokens) and decoding, which are what is left to compute once prompts are kept, take a
multiple of what plain matrix products take; only long new prompts gain. docs/threads.md has the measurement.
"""

from __future__ import annotations

from onceread.native.backend import can_offload
from onceread.native.model import MemoryKind, Model

# Scores of a small batch stay in the CPU's caches: without flash attention large ones are slower.
_MICRO_BATCH = 128
_SMALLEST = 16
_SCORES = 256 * 2**20  # bytes of scores that a context may hold before micro-batches get smaller
_BYTES = 4  # a score is an f32
_UNQUANTIZED = ("f32", "f16", "bf16")


def choose_flash_attn(model: Model, wanted: str, type_v: str, *, stored: bool) -> str:
    """``on``, ``off``, or ``auto`` where llama.cpp shall choose. ``wanted`` is one of them.

    ``stored``: idle conversations leave the context, for a store has them. Else they fill it, and without flash
    attention every token would be computed against all of them.

    It depends on nothing that changes from one start to the next (the context's size, free memory): states made with
    and without flash attention can't be mixed, and those on disk must stay good.
    """
    if wanted != "auto" or not stored:
        return wanted
    on_gpu = bool(model.gpu_layers) and can_offload()
    # Most layers of windowed models have little to attend to.
    if on_gpu or type_v not in _UNQUANTIZED or model.memory_kind is MemoryKind.WINDOWED:
        return "auto"
    return "off"


def choose_micro_batch(model: Model, flash_attn: str, n_ctx: int, n_batch: int) -> int | None:
    """Tokens of a batch to compute at a time; None is all of them.

    Without flash attention a context holds the scores of a micro-batch: a number for each of its tokens, each head
    and each cell.
    """
    if flash_attn != "off":
        return None
    # Few tokens of a batch go to each expert, and their weights are read for all of them together.
    size = n_batch if model.experts else min(n_batch, _MICRO_BATCH)
    while size > _SMALLEST and size * model.heads * n_ctx * _BYTES > _SCORES:
        size //= 2
    return size
