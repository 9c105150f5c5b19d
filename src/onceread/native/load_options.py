"""How a model's file is read and where its weights are put: what llama.cpp is told beside the path."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceread.native.errors import ModelError
from onceread.native.library import lib

Override = bool | int | float | str

_LONGEST = 127  # bytes of a key, and of a value that is text; C wants a zero behind them
_MOST_LAYERS = 0x7FFFFFFF


class LoadOptionsInvalid(ModelError, ValueError):
    """An option has a value that llama.cpp does not take. ``param`` names it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """llama.cpp's own defaults, unless something else is said."""

    gpu_layers: int = 0  # -1 = all
    split_mode: int | None = None  # llama.cpp's numbers: 0 = one GPU, 1 = by layers, 2 = by rows
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()  # the share of each GPU
    use_mmap: bool | None = None
    use_mlock: bool = False
    overrides: Mapping[str, Override] = field(default_factory=dict)  # of the file's metadata

    def apply(self, params: Any) -> list[Any]:
        """Set the fields of ``llama_model_params``. What is returned must live until the model is loaded.

        Raises LoadOptionsInvalid.
        """
        params.n_gpu_layers = self.gpu_layers if self.gpu_layers >= 0 else _MOST_LAYERS
        params.main_gpu = self.main_gpu
        if self.split_mode is not None:
            params.split_mode = self.split_mode
        if self.use_mmap is not None or self.use_mlock:
            params.load_mode = _MODES[self.use_mmap is not False, self.use_mlock]
        kept: list[Any] = []
        if self.tensor_split:
            kept.append(_shares(self.tensor_split))
            params.tensor_split = kept[-1]
        if self.overrides:
            kept.append(_overrides(self.overrides))
            params.kv_overrides = kept[-1]
        return kept


_MODES = {  # by whether the file is mapped, and whether it must stay in RAM
    (False, False): lib.LLAMA_LOAD_MODE_NONE,
    (True, False): lib.LLAMA_LOAD_MODE_MMAP,
    (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
    (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


def _shares(given: Sequence[float]) -> Any:
    most = int(lib.llama_max_devices())
    if len(given) > most:
        raise LoadOptionsInvalid(
            f"tensor_split names {len(given)} devices, and llama.cpp was built for at most {most}",
            "tensor_split",
        )
    return (ctypes.c_float * most)(*given)


def _overrides(given: Mapping[str, Override]) -> Any:
    array: Any = (lib.llama_model_kv_override * (len(given) + 1))()  # the last has an empty key
    for entry, (key, value) in zip(array, given.items(), strict=False):
        if not 0 < len(key.encode()) <= _LONGEST:
            raise LoadOptionsInvalid(f"kv_overrides: a key has 1 to {_LONGEST} bytes", "kv_overrides")
        entry.key = key.encode()
        match value:
            case bool():
                entry.tag, entry.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
            case int():
                entry.tag, entry.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
            case float():
                entry.tag, entry.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
            case str() if len(value.encode()) <= _LONGEST:
                entry.tag, entry.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
            case _:
                raise LoadOptionsInvalid(
                    f"kv_overrides: {key} must be a bool, an int, a float or a text of at most {_LONGEST} bytes",
                    "kv_overrides",
                )
    return array
