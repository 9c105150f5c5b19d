"""The ASGI application: routes, what surrounds them, and the state behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from onceread import __version__
from onceread.server import (
    anthropic_messages,
    cache_overview,
    cache_pins,
    cache_upkeep,
    chat_completions,
    docs_page,
    embeddings,
    health,
    llama_completion,
    llama_embedding,
    llama_props,
    llama_tokens,
    metrics,
    models,
    ollama,
    responses_create,
    responses_stored,
    text_completions,
)
from onceread.server.body import WARNING_HEADER
from onceread.server.error_handlers import HANDLERS
from onceread.server.middleware import BodyLimit, CatchAll, Measure
from onceread.server.openapi import document
from onceread.server.settings import Settings
from onceread.server.state import AppState

if TYPE_CHECKING:
    from onceread.engine.embeddings import EmbeddingEngine
    from onceread.engine.engine import Engine
    from onceread.native.model import Model

_DESCRIPTION = "A local LLM server over llama.cpp that reads every prompt once."


def create_app(
    engine: Engine | None,
    model: Model | None,
    settings: Settings,
    embedding: EmbeddingEngine | None = None,
) -> FastAPI:
    """The application. Raises TemplateUnusable if ``settings.chat_template`` can't be used.

    With an engine and its model it answers at once. Without, it says that it is loading, until
    ``app_state(app).serve(engine, model, embedding)`` or ``.fail(why)`` is called, from any thread.
    The caller owns engines and models, and closes them.
    """
    state = AppState(settings)
    if engine is not None and model is not None:
        state.serve(engine, model, embedding)
    app = FastAPI(
        title="Onceread",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # ours works without internet
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=dict(HANDLERS),
        middleware=_middleware(state),
    )
    app.state.onceread = state
    apis = (
        *(chat_completions, text_completions, responses_create, responses_stored, embeddings, models),
        *(anthropic_messages, llama_completion, llama_embedding, llama_tokens, llama_props, ollama),
    )
    for module in (*apis, cache_overview, cache_pins, cache_upkeep, health, metrics, docs_page):
        app.include_router(module.router)

    # Replacing the method is FastAPI's documented way to change the document.
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app, needs_key=bool(state.keys))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def app_state(app: FastAPI) -> AppState:
    """The state behind an app that :func:`create_app` made."""
    state = app.state.onceread
    assert isinstance(state, AppState)
    return state


def _middleware(state: AppState) -> list[Middleware]:
    # The outermost first. CORS stands outside, so that web pages can read errors too.
    settings = state.settings
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[WARNING_HEADER, "Retry-After"],
    )
    around = [
        Middleware(Measure, metrics=state.metrics),
        Middleware(CatchAll),
        Middleware(BodyLimit, max_bytes=settings.max_body_bytes),
    ]
    return [cors, *around] if settings.cors_origins else around
