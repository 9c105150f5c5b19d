"""What goes wrong in the library, as Python's users expect it: a ValueError for what was given, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from onceread.chat.errors import TemplateUnusable
from onceread.engine.errors import (
    ContextLengthExceeded,
    ExactUnavailable,
    MovedUnavailable,
    ShuttingDown,
)
from onceread.native.errors import AdapterInvalid, ContextInvalid, ContextTooLarge, ModelInvalid
from onceread.server.errors import ApiError, known

_OF_LOADING = ("split_mode", "tensor_split", "kv_overrides")
_FLAGS = {  # of the command line, which the layers below speak of
    "--ctx-size": "n_ctx",
    "--embedding-ctx-size": "n_ctx",
    "--cache-type-k/v": "type_k and type_v",
    "--flash-attn on": "flash_attn=True",
    "--gpu-layers": "n_gpu_layers",
    "--exact": "exact=True",
    "--reuse-moved": "reuse_moved=True",
}
_OURS = 500  # statuses below are about what was given


class InvalidParameter(ValueError):
    """A parameter, or something inside of it, that can't be used. ``param`` names it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Closed(RuntimeError):
    """The `Llama` is closed: make a new one."""

    def __init__(self, message: str = "this Llama is closed; make a new one") -> None:
        super().__init__(message)


def as_python(error: Exception, prompt_param: str | None = None) -> Exception:
    """``error``, or what the library raises in its place. ``prompt_param``: what the prompt came in.

    `ContextLengthExceeded` is a ValueError already, and what is no fault of the caller's stays as it is.
    """
    if isinstance(error, ApiError) and isinstance(error.__cause__, Exception):
        error = error.__cause__ if error.__cause__ is not error else error
    match error:
        case ContextLengthExceeded() | InvalidParameter():
            return error
        case ShuttingDown():
            return Closed()
        case ModelInvalid():
            param = next((name for name in _OF_LOADING if name in str(error)), "model_path")
            return InvalidParameter(f"{param}: {error}", param)
        case ContextInvalid():
            return InvalidParameter(str(error), str(error).partition(" ")[0])
        case ContextTooLarge():
            return InvalidParameter(f"n_ctx: {_by_parameters(str(error))}", "n_ctx")
        case ExactUnavailable():
            return InvalidParameter(f"exact: {_by_parameters(str(error))}", "exact")
        case MovedUnavailable():
            return InvalidParameter(f"reuse_moved: {_by_parameters(str(error))}", "reuse_moved")
        case AdapterInvalid():
            return InvalidParameter(f"lora_path: {error}", "lora_path")
        case TemplateUnusable():
            return InvalidParameter(f"chat_format: {error}", "chat_format")
    answer = known(error, prompt_param)
    if answer is None or (answer.status >= _OURS and not isinstance(error, ApiError)):
        return error
    return InvalidParameter(answer.message, answer.param)


def _by_parameters(message: str) -> str:
    flags = "|".join(re.escape(flag) for flag in sorted(_FLAGS, key=len, reverse=True))
    return re.sub(flags, lambda found: _FLAGS[found[0]], message)


@contextmanager
def told(prompt_param: str | None = None) -> Iterator[None]:
    """What is raised inside comes out as :func:`as_python` has it."""
    try:
        yield
    except Exception as error:
        better = as_python(error, prompt_param)
        if better is error:
            raise
        raise better from error
