"""A tiny LoRA adapter for the tiny plain model: random, and large enough for its effect to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.tiny.writer import HEAD, HEADS, WIDTH

RANK = 4


def write_lora(path: Path, *, seed: int = 1, architecture: str = "llama", width: int = WIDTH) -> Path:
    """For the queries of both layers. ``width``: of the model that it is made for."""
    file = GGUFWriter(str(path), architecture)
    rng = np.random.default_rng(seed)
    file.add_type("adapter")
    file.add_string("adapter.type", "lora")
    file.add_float32("adapter.lora.alpha", float(RANK))
    for layer in range(2):
        name = f"blk.{layer}.attn_q.weight"
        file.add_tensor(f"{name}.lora_a", rng.standard_normal((RANK, width)).astype(np.float32))
        file.add_tensor(f"{name}.lora_b", rng.standard_normal((HEADS * HEAD, RANK)).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
