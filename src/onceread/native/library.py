"""The one place that imports the binding; starts llama.cpp once for the process."""

from __future__ import annotations

import logging
import os
import threading

from onceread.native.errors import LibraryMissing

try:
    import llama_cpp.llama_cpp as lib
except (
    ImportError,
    OSError,
    RuntimeError,
) as error:  # a missing or broken shared library raises any of these
    raise LibraryMissing(
        f"llama.cpp's binding does not load ({error}); install it with `pip install llama-cpp-python`."
    ) from error

__all__ = ["lib", "start", "system_info"]

_started = False
_lock = threading.Lock()


def start() -> None:
    """Start llama.cpp's backends and send its log to Python's ``logging``. Safe to call again."""
    global _started
    with _lock:
        if not _started:
            from onceread.native import logs

            logs.install()
            lib.llama_backend_init()
            _started = True


def system_info() -> str:
    """llama.cpp's own line on the CPU features and backends it was built with."""
    start()
    return str(lib.llama_print_system_info().decode(errors="replace")).strip(" |")


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
