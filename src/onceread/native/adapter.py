"""A LoRA adapter beside a model's weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceread.native import logs
from onceread.native.errors import AdapterInvalid
from onceread.native.library import lib


@dataclass(frozen=True, slots=True)
class Adapter:
    """A GGUF of an adapter, and how much of it is added to the weights: 1.0 is all, 0 nothing."""

    path: Path
    scale: float = 1.0


def attach(model: Any, context: Any, adapter: Adapter) -> Any:
    """Load an adapter for a model, by its handle, and set it on a context. The handle, for :func:`free`.

    Raises AdapterInvalid.
    """
    path = adapter.path
    if not path.is_file():
        raise AdapterInvalid(f"no such LoRA adapter: {path}")
    logs.forget_errors()
    loaded = lib.llama_adapter_lora_init(model, str(path).encode())
    if not loaded:
        reason = logs.last_error() or "no reason given"
        raise AdapterInvalid(f"{path.name} is no LoRA adapter for this model: {reason}")
    adapters = (lib.llama_adapter_lora_p_ctypes * 1)(loaded)
    scales = (ctypes.c_float * 1)(adapter.scale)
    if lib.llama_set_adapters_lora(context, adapters, 1, scales):
        free(loaded)
        raise AdapterInvalid(f"{path.name} could not be set: {logs.last_error() or 'no reason given'}")
    return loaded


def free(loaded: Any) -> None:
    """Once, when no context has it any more, and before the model is closed."""
    lib.llama_adapter_lora_free(loaded)
