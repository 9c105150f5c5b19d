"""llama.cpp's backends: started once for the process, and what they were built with."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from onceread.native import logs
from onceread.native.library import lib

_started = False
_lock = threading.Lock()


def start() -> None:
    """Start llama.cpp's backends and send its log to Python's ``logging``. Safe to call again."""
    global _started
    with _lock:
        if not _started:
            logs.install()
            lib.llama_backend_init()
            _started = True


def system_info() -> str:
    """llama.cpp's own line on the CPU features and backends it was built with."""
    start()
    return str(lib.llama_print_system_info().decode(errors="replace")).strip(" |")


def features() -> dict[str, int]:
    """What :func:`system_info` lists, by name: `{"AVX2": 1, …}`. What is missing was not built in."""
    return {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", system_info())}


@dataclass(frozen=True, slots=True)
class Device:
    """Something that ggml can compute on."""

    name: str  # "CPU", "CUDA0", "Vulkan0", "Metal", …
    description: str
    is_gpu: bool
    free_bytes: int
    total_bytes: int  # 0 where the backend does not say


_GPU_TYPES = (1, 2)  # ggml_backend_dev_type: a GPU with memory of its own, or the CPU's


def devices() -> list[Device]:
    """What llama.cpp found to compute on; without a GPU build the CPU alone. Empty if the binding can't say."""
    start()
    try:
        count = _ggml("ggml_backend_dev_count", ctypes.c_size_t)
        get = _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
        name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
        describe = _ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
        kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
        size = ctypes.POINTER(ctypes.c_size_t)
        memory = _ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    except AttributeError:  # another version's library
        return []
    found = []
    for i in range(count()):
        device = get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                name(device).decode(errors="replace"),
                describe(device).decode(errors="replace"),
                kind(device) in _GPU_TYPES,
                free.value,
                total.value,
            )
        )
    return found


def can_offload() -> bool:
    """Was the binding built with a GPU's backend?"""
    start()
    return bool(lib.llama_supports_gpu_offload())


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml's, which the binding does not list but its library brings along."""
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def extra_buffers_safe() -> bool:
    """May llama.cpp repack weights for special instructions?

    A binding compiled with AMX by GCC 12.2 died of a protection fault at its first matrix product (the tile
    configuration it loads is not the one it wrote), although the CPU's AMX works. A bad build can't be told
    from a good one from here, so AMX is used only where ``ONCEREAD_AMX=1`` vouches for it. Without the extra
    buffers llama.cpp computes the same by AVX-512.
    """
    if "AMX_INT8 = 1" not in system_info() or os.environ.get("ONCEREAD_AMX") == "1":
        return True
    logging.getLogger(__name__).info(
        "the binding was built with AMX, which some compilers get wrong: not using it (ONCEREAD_AMX=1 does)"
    )
    return False
