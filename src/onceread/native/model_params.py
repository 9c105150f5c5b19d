"""How a model is loaded: onto which devices, into which memory, with which of its metadata set otherwise."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from onceread.native.errors import ModelInvalid
from onceread.native.library import lib

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
"""How several GPUs share a model: not, each some layers, or each some rows of every matrix."""

Override = bool | int | float | str
_LONGEST = 127  # bytes of a key or a text in an override


@dataclass(frozen=True, slots=True)
class ModelParams:
    """llama.cpp's parameters of loading. The defaults are its own."""

    split_mode: int = 1  # see SPLIT_MODES
    main_gpu: int = 0  # the one that is used where the model is not split
    tensor_split: tuple[float, ...] = ()  # the share of each GPU; empty = by their memory
    use_mmap: bool = True
    use_mlock: bool = False  # keep the weights in RAM; needs the right to lock that much
    vocab_only: bool = False  # no weights: good for tokenizing alone
    # Metadata that counts in place of the file's. Part of the fingerprint: it may change what is computed.
    kv_overrides: tuple[tuple[str, Override], ...] = field(default=())

    def apply(self, params: Any) -> list[Any]:
        """Write them into llama.cpp's struct. What is returned must live until the model is loaded.

        Raises ModelInvalid for what llama.cpp would take for something else, or for too much.
        """
        kept: list[Any] = []
        if self.split_mode not in SPLIT_MODES.values():
            raise ModelInvalid(f"split_mode must be 0 (none), 1 (layer) or 2 (row), not {self.split_mode}")
        params.split_mode = self.split_mode
        params.main_gpu = self.main_gpu
        params.vocab_only = self.vocab_only
        if self.use_mlock:
            mapped, plain = lib.LLAMA_LOAD_MODE_MMAP_MLOCK, lib.LLAMA_LOAD_MODE_MLOCK
            params.load_mode = mapped if self.use_mmap else plain
        elif not self.use_mmap:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        if self.tensor_split:
            most = int(lib.llama_max_devices())
            if len(self.tensor_split) > most:
                raise ModelInvalid(
                    f"tensor_split names {len(self.tensor_split)} devices, and there can be {most}"
                )
            shares = (ctypes.c_float * most)(*self.tensor_split)
            params.tensor_split = shares
            kept.append(shares)
        if self.kv_overrides:
            overrides = (
                lib.llama_model_kv_override * (len(self.kv_overrides) + 1)
            )()  # the last one is empty
            for one, (key, value) in zip(overrides, self.kv_overrides, strict=False):
                _override(one, key, value)
            params.kv_overrides = overrides
            kept.append(overrides)
        return kept


def _override(one: Any, key: str, value: Override) -> None:
    if not key or len(key.encode()) > _LONGEST:
        raise ModelInvalid(
            f"a key in kv_overrides has 1 to {_LONGEST} bytes, and {key[:40]!r} has {len(key.encode())}"
        )
    one.key = key.encode()
    if isinstance(value, bool):  # before int, which it is too
        one.tag, one.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        one.tag, one.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
    elif isinstance(value, float):
        one.tag, one.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    elif isinstance(value, str):
        if len(value.encode()) > _LONGEST:
            raise ModelInvalid(f"the text for {key} in kv_overrides is longer than {_LONGEST} bytes")
        one.tag, one.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    else:
        raise ModelInvalid(
            f"kv_overrides takes bool, int, float and str, and {key} has {type(value).__name__}"
        )
