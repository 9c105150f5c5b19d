"""Who `onceread chat` and `onceread complete` talk to: a model in this process, or a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from onceread.cli.errors import CommandError, one_line
from onceread.cli.progress import Progress
from onceread.models.home import expanded
from onceread.server.settings import Settings

if TYPE_CHECKING:
    from onceread.library.llama import Llama


class Writes(Protocol):
    """What both are: a `Llama` and a `RemoteLlama`."""

    def create_chat_completion(self, messages: Any, *, stream: Any = ..., **options: Any) -> Any: ...

    def create_completion(self, prompt: Any, *, stream: Any = ..., **options: Any) -> Any: ...


@dataclass(frozen=True)
class Connection:
    llama: Writes
    name: str
    """For people."""
    identity: str
    """Tells models and servers of one name apart."""
    remote: bool
    problems: tuple[type[BaseException], ...]
    """What a reply may fail with, each with a message for people."""
    close: Callable[[], None] = field(default=lambda: None)


def to_server(url: str, key: str | None, model: str | None) -> Connection:
    """A server's model. Raises CommandError if none answers."""
    from onceread.library.remote import RemoteError, RemoteLlama

    try:
        llama = RemoteLlama(url, key, model)
        name = llama.model
    except ValueError as error:
        raise CommandError(f"--url {error}" if "address" in str(error) else f"--api-key: {error}") from None
    except RemoteError as error:
        hint = " (--api-key SECRET, or the variable ONCEREAD_KEY)" if error.status == 401 else ""
        raise CommandError(f"{error}{hint}") from None
    return Connection(llama, name, f"{llama.url} {name}", True, (RemoteError, ValueError, OSError))


def to_model(settings: Settings) -> Connection:
    """A model in this process. Raises CommandError if it can't be loaded."""
    from onceread.cli.model_file import check_memory, find_model
    from onceread.cli.running import set_up_logging

    path = find_model(settings.model)
    check_memory(path, settings.gpu_layers)
    # Its log would run into the reply.
    set_up_logging("error" if settings.log_level == "info" else settings.log_level)
    from onceread.engine.errors import EngineError
    from onceread.library.llama import Llama
    from onceread.native.errors import NativeError

    # A TypeError is what an option is that the model does not have: a chat may have been with a server before.
    problems = (NativeError, EngineError, ValueError, TypeError, OSError, RuntimeError)
    try:
        with Progress(f"loading {path.name}", file=sys.stderr):
            llama = Llama(str(path), **_parameters(settings))
    except problems as error:
        cause = error.__cause__  # what it was before it was put in the library's words
        raise CommandError(
            one_line(cause if isinstance(cause, NativeError | EngineError) else error)
        ) from error
    except MemoryError:
        raise CommandError("too little memory: use a smaller model, or a smaller --ctx-size") from None
    name = settings.model_name or path.stem
    return Connection(_AsServed(llama), name, str(path.resolve()), False, problems, llama.close)


class _AsServed:
    """A `Llama` with a server's defaults: its own are llama-cpp-python's (16 tokens, another temperature)."""

    def __init__(self, llama: Llama) -> None:
        from onceread.native.params import SamplingParams

        self._llama = llama
        self._defaults = {"temperature": SamplingParams().temperature, "max_tokens": None}

    def create_chat_completion(self, messages: Any, *, stream: Any = True, **options: Any) -> Any:
        return self._llama.create_chat_completion(messages, stream=stream, **{**self._defaults, **options})

    def create_completion(self, prompt: Any, *, stream: Any = True, **options: Any) -> Any:
        return self._llama.create_completion(prompt, stream=stream, **{**self._defaults, **options})


def _parameters(settings: Settings) -> dict[str, Any]:
    """The same in the words of `Llama`, whose defaults are llama-cpp-python's and not ours."""
    return {
        "n_ctx": settings.ctx_size or 0,
        "n_batch": settings.batch_size,
        "n_threads": settings.threads,
        "n_threads_batch": settings.threads_batch,
        "n_gpu_layers": settings.gpu_layers,
        "type_k": settings.cache_type_k,
        "type_v": settings.cache_type_v,
        "flash_attn": {"auto": None, "on": True, "off": False}[settings.flash_attn],
        "chat_format": settings.chat_template,
        "overflow": settings.overflow,
        "exact": settings.exact,
        "cache_ram": settings.cache_ram,
        "cache_dir": None if settings.no_disk_cache else expanded(settings.cache_dir),
        "cache_disk": None if settings.no_disk_cache else settings.cache_disk,
        "verbose": False,
    }
