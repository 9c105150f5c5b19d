"""llama.cpp's backends: started once for the process, and what they were built with."""

from __future__ import annotations

import logging
import os
import threading

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
