"""A model and the engines over it, which are made anew when the cache's tiers change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from onceread.chat.template import ChatTemplate
from onceread.engine.embeddings import EmbeddingEngine
from onceread.engine.engine import Engine
from onceread.engine.errors import ShuttingDown
from onceread.engine.request import Request, RequestHandle
from onceread.library.errors import Closed
from onceread.library.setup import Setup
from onceread.native.model import Model
from onceread.server.loading import start_engines
from onceread.server.state import Serving

_PATIENCE = 10.0  # seconds; a call that takes longer to leave keeps the weights in memory, and nothing worse
_OWN_TEMPLATE = "chat_template.default"  # llama-cpp-python's name for the model's own
_NAMED = "chat_template."
_ALIASES = {"chatml-function-calling": "chatml"}  # tools work with every format here


class Host:
    """Thread-safe. Whoever makes one calls :meth:`close`."""

    def __init__(self, setup: Setup) -> None:
        """Raises what loading the model or making a context raises."""
        self._setup = setup
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._error: BaseException | None = None  # why what writes could not be started
        self._starts = not setup.embeds
        self._users = 0  # calls that look at the vocabulary, which goes with the model
        self._left = threading.Condition()
        self.model = Model.load(setup.path, gpu_layers=setup.settings.gpu_layers, params=setup.load)
        self._serving: Serving | None = None
        try:
            template = _template(self.model, setup.chat_format)
            engine, embeddings = self._engines()
            self._serving = Serving.of(engine, self.model, template, embeddings=embeddings)
        except BaseException:
            self.model.close()
            raise

    @property
    def setup(self) -> Setup:
        return self._setup

    def serving(self) -> Serving:
        """What answers. Raises Closed; or, with ``embedding=True``, why the model can't write."""
        self._check_process()
        with self._lock:
            serving = self._open()
            if not self._starts:
                self._starts = True
                try:
                    serving.engine.start()
                except BaseException as error:  # noqa: BLE001 - raised below, and whenever it is tried again
                    self._error = error
            if self._error is not None:
                raise self._error
            return serving

    def known(self) -> Serving:
        """The same for what needs no engine that runs: the vocabulary, embeddings. Raises Closed."""
        self._check_process()
        with self._lock:
            return self._open()

    @contextmanager
    def using(self) -> Iterator[None]:
        """The model is not freed meanwhile, whoever closes. Raises Closed."""
        self._check_process()
        with self._lock:
            self._open()
            with self._left:
                self._users += 1
        try:
            yield
        finally:
            with self._left:
                self._users -= 1
                self._left.notify_all()

    def submit(self, request: Request, notify: Callable[[], None] | None = None) -> RequestHandle:
        """As `Engine.submit`, to whichever engine there is."""
        while True:
            engine = self.serving().engine
            try:
                return engine.submit(request, notify)
            except ShuttingDown:
                if self.serving().engine is engine:  # waits for whoever makes a new one
                    raise

    def change(self, setup: Setup) -> None:
        """Make the engines anew. What runs is finished first; what comes meanwhile waits."""
        with self._lock:
            old = self._open()
            self._close_engines(old, grace=float("inf"))
            before, self._setup = self._setup, setup
            try:
                engine, embeddings = self._engines()
            except BaseException:
                self._setup = before
                engine, embeddings = self._engines()
                raise
            finally:
                self._serving = replace(old, engine=engine, embeddings=embeddings)

    def close(self) -> None:
        """End what runs, free everything. Safe to call again."""
        if os.getpid() != self._process:  # there is nothing to end here, and it is not ours to free
            return
        with self._lock:
            serving, self._serving = self._serving, None
        if serving is not None:
            self._close_engines(serving, grace=0)
            with self._left:
                free = self._left.wait_for(lambda: not self._users, _PATIENCE)
            if free:
                self.model.close()

    def _engines(self) -> tuple[Engine, EmbeddingEngine]:
        setup = self._setup
        return start_engines(self.model, setup.engine, setup.embedding, start=self._starts)

    def _check_process(self) -> None:
        if (
            os.getpid() != self._process
        ):  # a fork has none of the threads, and whatever waits for them is stuck
            raise Closed("this Llama belongs to the process that made it; make one in each process")

    def _open(self) -> Serving:
        if self._serving is None:
            raise Closed
        return self._serving

    @staticmethod
    def _close_engines(serving: Serving, grace: float) -> None:
        serving.engine.close(grace)
        if serving.embeddings is not None:
            serving.embeddings.close(grace)


def close_from_anywhere(host: Host) -> None:
    """Close it, also on a thread of its own engine, which the garbage collector may run on."""
    if threading.current_thread().name.startswith("onceread-"):
        threading.Thread(target=host.close, name="closing", daemon=True).start()
    else:
        host.close()


def _template(model: Model, name: str | None) -> ChatTemplate:
    if name is None or name == _OWN_TEMPLATE:
        return ChatTemplate.of_model(model)
    named = model.metadata.get(f"tokenizer.{name}") if name.startswith(_NAMED) else None
    if named is not None:
        return ChatTemplate.of_source(model, named)
    return ChatTemplate.of_model(model, _ALIASES.get(name, name))
