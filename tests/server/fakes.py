"""A model and an engine without llama.cpp, for tests of what stands above them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceread.engine.config import EngineConfig, EngineStats
from onceread.engine.request import (
    CachedBySource,
    DoneEvent,
    FinishEvent,
    Request,
    RequestHandle,
    TextEvent,
    TokenLogprob,
    Usage,
)
from onceread.native.model import MemoryKind
from onceread.native.vocabulary import FillTokens
from onceread.server.app import create_app
from onceread.server.settings import Settings

CONTROL = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}


class FakeVocab:
    """A token for each byte, and three control tokens."""

    size = 259
    bos, eos, eot = 256, 258, 258
    add_bos = False
    control_tokens = CONTROL
    fill = FillTokens()
    marks = CONTROL

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        tokens: list[int] = []
        while data:
            for name, token in CONTROL.items():
                if parse_special and data.startswith(name.encode()):
                    tokens.append(token)
                    data = data[len(name) :]
                    break
            else:
                tokens.append(data[0])
                data = data[1:]
        return [self.bos, *tokens] if add_special and self.add_bos else tokens

    def detokenize(self, tokens: list[int]) -> bytes:
        return bytes(t for t in tokens if t < 256)

    def shown(self, tokens: list[int]) -> bytes:
        return b"".join(bytes([t]) if t < 256 else self.text(t).encode() for t in tokens)

    def is_eog(self, token: int) -> bool:
        return token in (self.eos, self.eot)

    def text(self, token: int) -> str:
        return {v: k for k, v in CONTROL.items()}.get(token) or chr(token)


@dataclass
class FakeModel:
    """Just enough of a Model."""

    vocab: Any = None
    chat_template: str | None = None
    name: str = "fake"
    architecture: str = "fake"
    description: str = "a fake"
    n_params: int = 0
    n_ctx_train: int = 100
    size_bytes: int = 0
    memory_kind: MemoryKind = MemoryKind.PLAIN

    def __post_init__(self) -> None:
        self.vocab = self.vocab or FakeVocab()


Script = Callable[["FakeEngine", RequestHandle], None]


def echo(engine: FakeEngine, handle: RequestHandle) -> None:
    """Answers `héllo` to everything, in two events."""
    request = handle.request
    budget = 5 if request.max_tokens is None else request.max_tokens
    for index in range(request.n):
        for text in ("hé", "llo"):
            if budget:
                logprobs = ()
                if request.logprobs is not None:
                    piece = text.encode()
                    logprobs = (TokenLogprob(1, piece, -0.5, ((1, piece, -0.5),) * request.logprobs),)
                handle.push(TextEvent(index, text, 1, logprobs))
        handle.push(FinishEvent(index, "stop"))
    n = len(request.prompt)
    usage = Usage(n, 1, CachedBySource(context=n - 1), 2 * request.n, 0.0, 0.25, 0.5)
    handle.push(DoneEvent(usage))


class FakeEngine:
    """Runs ``script`` for each request on a thread of its own, and remembers the requests."""

    state = "ok"
    failure: str | None = None
    limit = n_ctx = 100
    config = EngineConfig()
    store: Any = None

    def __init__(self, script: Script = echo) -> None:
        self.script = script
        self.handles: list[RequestHandle] = []
        self.refuses: Exception | None = None

    @property
    def requests(self) -> list[Request]:
        return [handle.request for handle in self.handles]

    def submit(self, request: Request, notify: Callable[[], None] | None = None) -> RequestHandle:
        if self.refuses is not None:
            raise self.refuses
        handle = RequestHandle(request, notify)
        self.handles.append(handle)
        threading.Thread(target=self.script, args=(self, handle), daemon=True).start()
        return handle

    def stats(self) -> EngineStats:
        return EngineStats(requests_total=len(self.handles), cells_total=self.n_ctx)


def until_cancelled(engine: FakeEngine, handle: RequestHandle) -> None:
    """Writes the same word until nobody wants it any more."""
    deadline = time.monotonic() + 10
    tokens = 0
    while not handle.cancelled and time.monotonic() < deadline:
        tokens += 1
        handle.push(TextEvent(0, "word ", tokens))
        time.sleep(0.01)


def fake_app(engine: FakeEngine | None = None, **settings: Any) -> Any:
    """An app over a fake engine; its engine is ``app.state.engine``."""
    engine = engine or FakeEngine()
    settings = {"no_disk_cache": True, **settings}
    app = create_app(engine, FakeModel(), Settings(**settings))  # type: ignore[arg-type]
    app.state.engine = engine
    return app
