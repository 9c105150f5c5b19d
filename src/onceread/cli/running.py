"""A server's life: take the port, answer while the model loads, announce it, stop in good order."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from onceread import __version__
from onceread.cli import listen
from onceread.cli.errors import CommandError, one_line
from onceread.cli.model_file import check_memory, existing, find_model, gib, name_of, short
from onceread.cli.progress import Progress
from onceread.server.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from onceread.engine.embeddings import EmbeddingEngine
    from onceread.engine.engine import Engine
    from onceread.native.model import Model

logger = logging.getLogger(__name__)

_FORCED = 1  # the exit status after a second signal
_PATIENCE = 10.0  # seconds beyond the grace period that an unforced stop may take
_LAST_WORDS = 3.0  # seconds that a forced stop may take before the process just ends


def run_server(settings: Settings) -> int:
    """Serve until a signal stops it; the exit status. Raises CommandError with one line if it can't."""
    set_up_logging(settings.log_level)
    if os.environ.get("CACHE", "").lower() in ("1", "true", "yes", "on"):
        logger.info(
            "CACHE=%s: the cache is always on; --cache-ram and --cache-disk size it", os.environ["CACHE"]
        )
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, _stop_at_once)
    path = find_model(settings.model)
    if settings.model_name is None and (name := name_of(settings.model)) is not None:
        settings = settings.model_copy(update={"model_name": name})
    check_memory(path, settings.gpu_layers)
    embedding_path = None
    if settings.embedding_model is not None:
        embedding_path = existing(settings.embedding_model, "--embedding-model")
        check_memory(embedding_path, settings.gpu_layers)
    sockets = listen.listen(settings.host, settings.port)
    url = listen.url_of(sockets)
    say(f"Onceread {__version__}")
    say(f"  address   {url}" + ("" if settings.api_keys else "  (no API key needed)"))
    try:
        app = _make_app(settings)
    except BaseException:
        listen.close(sockets)
        raise
    life = _Life(settings, path, embedding_path, app, url)
    life.server.run(sockets=sockets)
    return life.end()


def _cache_line(engine: Engine, directory: Path) -> str:
    if engine.store is None:
        return "off"
    stats = engine.store.stats()
    parts = []
    for label, tier, where in (("RAM", stats.memory, ""), ("disk", stats.disk, f" in {short(directory)}")):
        parts.append(f"{label} {gib(tier.budget)}{where}" if tier.state == "ok" else f"{label} {tier.state}")
    return "; ".join(parts)


def _stop_at_once(_signal: int, _frame: FrameType | None) -> None:
    """For signals that come before there is anything to close."""
    raise SystemExit(0)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def set_up_logging(level: str) -> None:
    """Our own log on stderr, at ``level``; what lies below says only warnings, except with `debug`."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    if level != "debug":
        for name in ("onceread.llama", "onceread.native", "uvicorn", "asyncio"):
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
        # While a model loads, llama.cpp's complaints end up in the exception that says it all.
        logging.getLogger("onceread.llama").setLevel(logging.CRITICAL)


def _make_app(settings: Settings) -> FastAPI:
    from onceread.native.errors import NativeError

    try:
        from onceread.server.app import create_app

        return create_app(None, None, settings)
    except NativeError as error:  # the binding is missing or broken
        raise CommandError(one_line(error)) from error


class _Server(uvicorn.Server):
    """uvicorn, with signals that also stop the engine, and an exit status of our own."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop
        self._signals = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Ours were set before and stay after: a signal must not break off the first steps, nor the last.
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.should_exit = True
        if self._signals == 1:
            self._stop()
        else:
            self.force_exit = True
            for name in ("uvicorn", "asyncio"):  # what is broken off now has nothing new to say
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _Life:
    """One run of the server. The main thread answers HTTP, another loads the model."""

    def __init__(
        self, settings: Settings, path: Path, embedding_path: Path | None, app: FastAPI, url: str
    ) -> None:
        from onceread.server.app import app_state

        self._settings = settings
        self._path = path
        # None if the model that writes is to embed, too.
        self._embedding_path = (
            embedding_path if embedding_path and not embedding_path.samefile(path) else None
        )
        self._url = url
        self._state = app_state(app)
        self._model: Model | None = None
        self._engine: Engine | None = None
        self._embedding_model: Model | None = None
        self._embeddings: EmbeddingEngine | None = None
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._closer: threading.Thread | None = None
        self._loader = threading.Thread(target=self._load, name="onceread-loader", daemon=True)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=settings.log_level == "debug",
            timeout_keep_alive=math.ceil(settings.keep_alive),
            timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + 5,
            lifespan="auto",
            ws="none",
            server_header=False,
            backlog=listen.BACKLOG,
        )
        self.server = _Server(config, self._stop)
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self.server.handle_exit)
        self._loader.start()

    # -- the loader's thread -----------------------------------------------

    def _load(self) -> None:
        from onceread.chat.errors import ChatError
        from onceread.engine.errors import EngineError
        from onceread.native.errors import LoadCancelled, NativeError

        try:
            self._bring_up()
        except LoadCancelled:
            pass
        except MemoryError:
            self._fail("too little memory: use a smaller model, or a smaller --ctx-size")
        except (NativeError, EngineError, ChatError, OSError) as error:
            self._fail(one_line(error))
        except Exception as error:
            logger.debug("while loading", exc_info=True)
            self._fail(
                f"unexpected while loading: {type(error).__name__}: {one_line(error)} (--log-level debug)"
            )

    def _bring_up(self) -> None:
        from onceread.server.loading import embedding_config, engine_config, start_engines

        settings = self._settings
        began = time.monotonic()
        self._model = self._load_model(self._path)
        if self._embedding_path is not None:
            self._embedding_model = self._load_model(self._embedding_path)
        engine, embeddings = start_engines(
            self._model, engine_config(settings), embedding_config(settings), self._embedding_model
        )
        self._engine, self._embeddings = engine, embeddings
        self._state.serve(engine, self._model, embeddings)
        if self._stopping.is_set():
            return
        if settings.log_level != "debug":
            logging.getLogger("onceread.llama").setLevel(logging.WARNING)
        self._announce(self._model, engine, time.monotonic() - began)

    def _load_model(self, path: Path) -> Model:
        from onceread.native.model import Model

        with Progress(f"loading {path.name}") as progress:
            return Model.load(
                path,
                gpu_layers=self._settings.gpu_layers,
                progress=lambda share: progress.show(share) and not self._stopping.is_set(),
            )

    def _announce(self, model: Model, engine: Engine, seconds: float) -> None:
        params = engine.params
        name = self._settings.model_name or model.name
        about = f"{model.description}, {model.n_params / 1e6:,.0f}M parameters, {gib(model.size_bytes)}"
        say(f"  model     {name} ({about})")
        say(
            f"  context   {engine.n_ctx:,} tokens for all, {engine.limit:,} for one; "
            f"{engine.config.parallel} at a time" + (", exact" if engine.config.exact else "")
        )
        if self._embedding_model is not None and self._embeddings is not None:
            plan = self._embeddings.plan()
            size = f"{plan.dimensions:,} numbers, from up to {plan.limit:,} tokens"
            say(f"  embedding {self._embedding_model.name} ({size})")
        say(f"  cache     {_cache_line(engine, self._settings.cache_dir)}")
        say(f"  threads   {params.n_threads} for decoding, {params.n_threads_batch} for prefill")
        say(f"  API       {self._url}/v1, described at {self._url}/docs")
        say(f"Ready after {seconds:.1f} s: {self._url} (Ctrl+C stops)")

    def _fail(self, why: str) -> None:
        self._failure = why
        self._state.fail(why)
        self.server.should_exit = True

    # -- the end -----------------------------------------------------------

    def _stop(self) -> None:
        """The first signal: no new requests; those that run get their grace while HTTP still streams."""
        self._stopping.set()
        self._state.close()
        self._closer = threading.Thread(target=self._close, name="onceread-closer", daemon=True)
        self._closer.start()

    def _close(self) -> None:
        self._close_engines(self._settings.shutdown_grace)

    def _close_engines(self, grace: float) -> None:
        """Both go on meanwhile; the one that is closed second has what the first left of the time."""
        until = time.monotonic() + grace
        if self._engine is not None:
            self._engine.close(grace)
        if self._embeddings is not None:
            self._embeddings.close(max(0.0, until - time.monotonic()))

    def end(self) -> int:
        """After HTTP has stopped: free what is held. Raises CommandError if loading failed."""
        forced = self.server.force_exit
        self._stopping.set()
        tidy = threading.Thread(
            target=self._tidy, args=(0.0 if forced else self._settings.shutdown_grace,), daemon=True
        )
        tidy.start()
        # One decode of a large model, or a grammar llama.cpp loses itself in, can outlast any patience.
        tidy.join(_LAST_WORDS if forced else self._settings.shutdown_grace + _PATIENCE)
        stuck = tidy.is_alive() and not forced
        if stuck:
            logger.error("llama.cpp did not come back in time; the process ends without it")
        if self._failure is not None:
            raise CommandError(self._failure)
        if forced or stuck:
            sys.stdout.flush()
            os._exit(_FORCED)  # the engine may be inside llama.cpp, which can't be interrupted
        say("Stopped.")
        return 0

    def _tidy(self, grace: float) -> None:
        self._loader.join()
        if self._closer is not None:
            self._closer.join(None if grace else 0)
        self._close_engines(grace)
        for model in (self._embedding_model, self._model):
            if model is not None:
                model.close()
