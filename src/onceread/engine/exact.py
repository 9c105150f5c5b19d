"""Exact mode: a reply from cache is bit for bit the reply without it, at the price of speed.

Why replies differ by rounding otherwise: the same token gets other bits in a batch of another shape and in cells
that lie otherwise. Measured on the CPU with flash attention off: all batches of two tokens and more agree, and so do
all layouts in which a sequence's cells lie in order from the first one on. So in this mode

- flash attention is off (with it, only batches of 64 and more agree);
- one request runs at a time, in a context that holds nothing else, so that its cells lie in order;
- a batch of a single token is padded with another one, in the scratch sequence.

docs/reuse.md has what it costs.
"""

from __future__ import annotations

from dataclasses import replace

from onceread.engine.config import EngineConfig
from onceread.engine.errors import ExactUnavailable
from onceread.native.model import MemoryKind, Model


def exact_config(model: Model, config: EngineConfig) -> EngineConfig:
    """The configuration with what exact mode prescribes. Raises ExactUnavailable."""
    if model.memory_kind is not MemoryKind.PLAIN:
        raise ExactUnavailable(
            f"exact mode is for plain attention, and {model.name} has {model.memory_kind.value}: leave out --exact"
        )
    if config.flash_attn == "on":
        raise ExactUnavailable("exact mode needs flash attention off: leave out --flash-attn on")
    if model.gpu_layers:
        raise ExactUnavailable("exact mode was only established on the CPU: leave out --gpu-layers")
    return replace(config, flash_attn="off", parallel=1, max_residents=1)
