"""What one server knows: its settings, and its model once that is loaded."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from onceread.chat.issued import IssuedCalls
from onceread.chat.prompt import PromptTokenizer
from onceread.chat.style import Style
from onceread.chat.template import ChatTemplate
from onceread.server.auth import Keys
from onceread.server.cache_stats import CacheNumbers
from onceread.server.errors import unavailable
from onceread.server.metrics import Metrics
from onceread.server.responses_store import ResponseStore
from onceread.server.setting_values import is_loopback
from onceread.server.settings import Settings

if TYPE_CHECKING:
    from onceread.engine.embeddings import EmbeddingEngine
    from onceread.engine.engine import Engine
    from onceread.native.model import Model

_RETRY_LOADING = 5


@dataclass(frozen=True)
class Serving:
    """A model that answers."""

    engine: Engine
    model: Model
    template: ChatTemplate
    tokenizer: PromptTokenizer
    name: str  # what the API calls it
    since: int  # Unix time
    embeddings: EmbeddingEngine | None = None  # over the same model, or one of its own
    issued: IssuedCalls = field(default_factory=IssuedCalls)

    @classmethod
    def of(
        cls,
        engine: Engine,
        model: Model,
        template: ChatTemplate,
        *,
        name: str | None = None,
        embeddings: EmbeddingEngine | None = None,
    ) -> Serving:
        """``name``: what the API calls the model, if not what its file is called."""
        return cls(
            engine=engine,
            model=model,
            template=template,
            tokenizer=PromptTokenizer(model.vocab),
            name=name or model.name,
            since=int(time.time()),
            embeddings=embeddings,
        )

    @property
    def embeds_apart(self) -> bool:
        """Is there a model of its own for embeddings?"""
        return self.embeddings is not None and self.embeddings.model is not self.model

    @property
    def embedding_name(self) -> str:
        """What the API calls the model that embeds."""
        return self.embeddings.model.name if self.embeddings and self.embeds_apart else self.name

    @property
    def style(self) -> Style:
        """How the model talks, by its template."""
        return Style.of(self.template.source)


class AppState:
    """The state behind one app. The HTTP server may run before there is a model: then it says so.

    Whoever loads the model calls :meth:`serve` or :meth:`fail`, from any thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.api_keys, settings.admin_key, local=is_loopback(settings.host))
        self.metrics = Metrics(
            lambda: self.engine, lambda: self._serving.embeddings if self._serving else None
        )
        self.cache = CacheNumbers(lambda: self.engine)
        self.responses = ResponseStore(  # nothing is opened before it is used
            None if settings.no_disk_cache else settings.cache_dir,
            keep_days=settings.responses_keep,
            max_bytes=settings.responses_size,
        )
        self._serving: Serving | None = None
        self._failure: str | None = None
        self._closing = False
        self._lock = threading.Lock()

    def serve(self, engine: Engine, model: Model, embeddings: EmbeddingEngine | None = None) -> None:
        """From now on requests are answered. Raises TemplateUnusable for a bad ``--chat-template``."""
        template = ChatTemplate.of_model(model, self.settings.chat_template)
        with self._lock:
            self._serving = Serving.of(
                engine, model, template, name=self.settings.model_name, embeddings=embeddings
            )

    def fail(self, detail: str) -> None:
        """The model can't be served, and ``detail`` says why. Requests get a 503 with it."""
        self._failure = detail

    def close(self) -> None:
        """From now on new requests are refused: the server is shutting down. Running ones go on."""
        self._closing = True

    @property
    def engine(self) -> Engine | None:
        """The engine, whatever its state; None while the model loads."""
        return self._serving.engine if self._serving else None

    def health(self) -> tuple[str, str | None]:
        """``ok``, ``loading`` or ``failed``, and in the last case why."""
        serving = self._serving
        if self._failure is not None:
            return "failed", self._failure
        if serving is None:
            return "loading", None
        return serving.engine.state, serving.engine.failure

    def serving(self) -> Serving:
        """The model, ready to answer. Raises a 503 that says why there is none."""
        if self._closing:
            raise unavailable("The server is shutting down.", "shutting_down", 1)
        status, detail = self.health()
        if status == "failed":
            raise unavailable(f"The model can't be served: {detail or 'the log says why'}.", "model_failed")
        if status != "ok" or self._serving is None:
            raise unavailable("The model is still loading; try again soon.", "model_loading", _RETRY_LOADING)
        return self._serving


def state_of(request: Request) -> AppState:
    """The state behind the app that got ``request``."""
    state = request.app.state.onceread
    assert isinstance(state, AppState)
    return state
