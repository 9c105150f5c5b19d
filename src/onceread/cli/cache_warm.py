"""``onceread cache warm``: read something ahead of time, by a running server or into a directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceread.cli.errors import CommandError, one_line
from onceread.cli.model_file import check_memory, find_model, short
from onceread.cli.progress import Progress
from onceread.models.home import expanded
from onceread.server.cache_schemas import Warmed, WarmRequest
from onceread.server.errors import ApiError
from onceread.server.settings import Settings

_STORED_WITHIN = 60.0  # seconds
_WRITTEN_WITHIN = 600.0


def what_to_read(prompt: str | None, file: Path | None, messages: Path | None) -> dict[str, Any]:
    """The body of a warm request. Raises CommandError."""
    if sum(given is not None for given in (prompt, file, messages)) != 1:
        raise CommandError("give one of --prompt TEXT, --file FILE and --messages FILE.json")
    if messages is not None:
        try:
            found = json.loads(_read(messages))
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{messages} is not JSON: {one_line(error)}") from None
        body: dict[str, Any] = {"messages": found.get("messages") if isinstance(found, dict) else found}
    else:
        body = {"prompt": prompt if file is None else _read(file)}
    _parsed(body)
    return body


def warm_directory(
    what: Mapping[str, Any], settings: Settings, *, salt: str | None, of: str | None
) -> Warmed:
    """Load the model, read, wait until all is on disk. Raises CommandError."""
    from onceread.chat.errors import ChatError
    from onceread.cli.running import set_up_logging
    from onceread.engine.errors import EngineError
    from onceread.native.errors import NativeError

    if settings.no_disk_cache:
        raise CommandError("there is nothing to warm with --no-disk-cache: it keeps nothing on disk")
    path = find_model(settings.model)
    check_memory(path, settings.gpu_layers)
    set_up_logging("warning" if settings.log_level == "info" else settings.log_level)
    try:
        return _load_and_read(path, what, settings, salt, of)
    except ApiError as error:
        raise CommandError(str(error)) from error
    except (NativeError, EngineError, ChatError, OSError) as error:
        raise CommandError(one_line(error)) from error
    except MemoryError:
        raise CommandError("too little memory: use a smaller model, or a smaller --ctx-size") from None


def _load_and_read(
    path: Path, what: Mapping[str, Any], settings: Settings, salt: str | None, of: str | None
) -> Warmed:
    from onceread.engine.engine import Engine
    from onceread.engine.request import Request, gather
    from onceread.native.model import Model
    from onceread.server.auth import Caller
    from onceread.server.cache_access import store_of
    from onceread.server.loading import engine_config
    from onceread.server.reading import tokens_of, wait_stored
    from onceread.server.state import AppState
    from onceread.server.usage import timings, usage_body

    with Progress(f"loading {path.name}", file=sys.stderr) as progress:
        model = Model.load(path, gpu_layers=settings.gpu_layers, progress=progress.show)
    with model, Engine(model, engine_config(settings)) as engine:
        state = AppState(settings)
        state.serve(engine, model)
        serving = state.serving()
        store = store_of(state, serving)
        if (disk := store.stats().disk.state) != "ok":
            raise CommandError(f"{short(settings.cache_dir)} can't be used: {disk.removeprefix('failed: ')}")
        caller = Caller() if of is None else Caller(of)
        namespace = caller.namespace(salt)
        tokens = tokens_of(serving, _parsed(what), namespace)
        print(f"  reading {len(tokens):,} tokens", file=sys.stderr, flush=True)  # noqa: T201
        answer = gather(engine.submit(Request(tokens, max_tokens=0, namespace=namespace)))
        stored = wait_stored(engine, namespace, tokens, _STORED_WITHIN) is not None
        written = stored and store.wait_written(_WRITTEN_WITHIN)
        if (disk := store.stats().disk.state) != "ok":
            raise CommandError(f"not all was written: {disk.removeprefix('failed: ')}")
    usages = [answer.usage]
    return Warmed(usage=usage_body(usages), timings=timings(usages), stored=written)


def _parsed(body: Mapping[str, Any]) -> WarmRequest:
    from onceread.server.body import parse_body

    try:
        return parse_body(WarmRequest, json.dumps(body).encode())
    except ApiError as error:
        raise CommandError(str(error)) from None


def _read(file: Path) -> str:
    try:
        return expanded(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}") from None
