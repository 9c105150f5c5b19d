"""What goes wrong in the library, as Python's users expect it: a ValueError for what was given, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceread.chat.errors import TemplateUnusable
from onceread.engine.errors import ContextLengthExceeded, ShuttingDown
from onceread.native.errors import AdapterInvalid, ContextInvalid, ModelInvalid
from onceread.server.errors import ApiError, known

_OF_LOADING = ("split_mode", "tensor_split", "kv_overrides")
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
        case AdapterInvalid():
            return InvalidParameter(f"lora_path: {error}", "lora_path")
        case TemplateUnusable():
            return InvalidParameter(f"chat_format: {error}", "chat_format")
    answer = known(error, prompt_param)
    if answer is None or (answer.status >= _OURS and not isinstance(error, ApiError)):
        return error
    return InvalidParameter(answer.message, answer.param)


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
