"""Sizes by the machine that need nothing of llama.cpp: whoever looks at a machine where it is broken has them, too."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

_GIB = 1024**3
_MAX_DISK = 20 * _GIB


def default_threads() -> int:
    """Threads for ggml: one for each physical core this process may use. docs/threads.md has the measurement."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        usable = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or usable
    return max(1, min(usable, physical))


def default_disk_budget(folder: Path) -> int:
    """Bytes that the cache may take in a directory, which need not be there yet: a tenth of what is free."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    return min(_MAX_DISK, shutil.disk_usage(there).free // 10)
