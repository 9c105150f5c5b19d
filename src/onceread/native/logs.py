"""llama.cpp's log, line by line, into the logger ``onceread.llama``; the last error is kept for exceptions."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import deque
from typing import Any

from onceread.native.library import lib

logger = logging.getLogger("onceread.llama")

# ggml_log_level -> logging. llama.cpp calls everything about loading "info"; a server's user wants it only with debug.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.ERROR}
_ERROR = 4
_CONTINUED = 5

_lock = threading.Lock()
_partial: list[str] = []
_level = 0
_errors: deque[str] = deque(maxlen=8)
_callback: Any = None  # ctypes keeps no reference: losing it would be a crash at the next log line


def _on_log(level: int, text: bytes, _user_data: Any) -> None:
    global _level
    try:
        with _lock:
            if level != _CONTINUED:
                _level = level
            _partial.append(text.decode("utf-8", errors="replace"))
            if not _partial[-1].endswith("\n"):
                return
            line = "".join(_partial).strip()
            _partial.clear()
            if _level == _ERROR and line:
                _errors.append(line)
            level_now = _level
        if line:
            if not line.isprintable():  # it repeats what stands in a model's file, and logs go to terminals
                line = "".join(c if c.isprintable() or c in "\n\t" else " " for c in line)
            logger.log(_LEVELS.get(level_now, logging.DEBUG), "%s", line)
    except Exception:  # noqa: BLE001, S110 - an exception must not cross back into C
        pass


def install() -> None:
    """Make llama.cpp log through Python. Called once, before anything else is asked of it."""
    global _callback
    _callback = lib.llama_log_callback(_on_log)
    lib.llama_log_set(_callback, ctypes.c_void_p(0))


def forget_errors() -> None:
    """Start afresh, so that :func:`last_error` speaks of the call that follows."""
    with _lock:
        _errors.clear()


def last_error() -> str:
    """What llama.cpp last logged as an error since :func:`forget_errors`, or an empty string."""
    with _lock:
        return _errors[0] if _errors else ""
