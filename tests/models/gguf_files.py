"""Small GGUF files for the tests that read and list them, and bytes of those that lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

STRING, ARRAY, U32 = 8, 9, 4


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    words: int = 8,
    file_type: int | None = None,
    **numbers: Any,
) -> Path:
    """A file with metadata and two tensors, one of them F16. ``numbers`` are keys of the architecture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = GGUFWriter(str(path), architecture)
    file.add_name("Tiny")
    if file_type is not None:
        file.add_file_type(file_type)
    sizes = {"context_length": 2048, "block_count": 2, "embedding_length": 64, "attention.head_count": 4} | {
        key.replace("__", "."): value for key, value in numbers.items()
    }
    for key, value in sizes.items():
        if isinstance(value, list):
            file.add_array(f"{architecture}.{key}", value)
        else:
            file.add_uint32(f"{architecture}.{key}", value)
    file.add_array("tokenizer.ggml.tokens", [f"word {i}" for i in range(words)])
    file.add_chat_template("{{ messages }}")
    file.add_tensor("token_embd.weight", np.zeros((16, 64), np.float16))
    file.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def head(*, tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)
