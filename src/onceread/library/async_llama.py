"""`AsyncLlama`: the methods of `Llama` for asyncio, over the same engine."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from typing_extensions import Self

from onceread.engine.request import Request
from onceread.library.answers import Chunks
from onceread.library.calls import Call, ChatCall, TextCall
from onceread.library.embedding import Embedding, Texts
from onceread.library.errors import told
from onceread.library.llama import Answer, Llama
from onceread.server.answering import Answering

T = TypeVar("T")

_TEXT = inspect.signature(Llama.create_completion)
_CHAT = inspect.signature(Llama.create_chat_completion)
_IN_THREADS = ("eval", "sample", "save_state", "load_state", "reset", "set_cache")


class AsyncStream(AsyncIterator[Answer]):
    """The chunks of an answer. Closing it, letting go of it or cancelling who waits for it ends the request."""

    def __init__(self, answering: Answering, chunks: Chunks, param: str) -> None:
        self._answering = answering
        self._batches = answering.events()
        self._chunks = chunks
        self._param = param
        self._ready = deque(chunks.begin())

    async def __anext__(self) -> Answer:
        try:
            while not self._ready:
                with told(self._param):
                    batch = await anext(self._batches)
                for _, event in batch:
                    self._ready += self._chunks.take(event)
        except BaseException:
            self._answering.cancel()
            raise
        return self._ready.popleft()

    async def aclose(self) -> None:
        """End the request; there are no more chunks."""
        self._ready.clear()
        self._answering.cancel()
        await self._batches.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_answering"):
            self._answering.cancel()


class AsyncLlama:
    """What takes long is awaited here; all else is as of the `Llama` that it stands for, :attr:`llama`.

    Making one loads the model, which takes its time: use :meth:`load` where a loop runs already.
    """

    def __init__(self, model_path: Any, **parameters: Any) -> None:
        """``model_path`` and ``parameters`` as of `Llama`, or a `Llama` to share: that one is then not closed."""
        shared = isinstance(model_path, Llama)
        if shared and parameters:
            raise TypeError("a Llama that is there already takes no more parameters")
        self.llama: Llama = model_path if shared else Llama(model_path, **parameters)
        self._owns = not shared

    @classmethod
    async def load(cls, model_path: Any, **parameters: Any) -> Self:
        """Make one on a thread."""
        return await _threaded(cls, model_path, **parameters)

    @classmethod
    async def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """As `Llama.from_pretrained`, on a thread."""
        made = cls(await _threaded(Llama.from_pretrained, *args, **kwargs))
        made._owns = True
        return made

    async def create_completion(self, *args: Any, **kwargs: Any) -> Answer | AsyncIterator[Answer]:
        """As `Llama.create_completion`. Cancelling who waits for it ends the request."""
        return await self._answer(TextCall, _TEXT, args, kwargs)

    async def __call__(self, *args: Any, **kwargs: Any) -> Answer | AsyncIterator[Answer]:
        """As :meth:`create_completion`."""
        return await self._answer(TextCall, _TEXT, args, kwargs)

    async def create_chat_completion(self, *args: Any, **kwargs: Any) -> Answer | AsyncIterator[Answer]:
        """As `Llama.create_chat_completion`. Cancelling who waits for it ends the request."""
        return await self._answer(ChatCall, _CHAT, args, kwargs)

    async def create_embedding(self, input: Texts, model: str | None = None) -> Answer:  # noqa: A002
        """As `Llama.create_embedding`."""
        with told(Embedding.param):
            job = await _threaded(Embedding, self.llama._host, input, truncate=True)
            return job.body(await asyncio.wrap_future(job.future), model or self.llama.model_path)

    async def embed(
        self,
        input: Texts,  # noqa: A002
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """As `Llama.embed`."""
        with told(Embedding.param):
            job = await _threaded(Embedding, self.llama._host, input, truncate=truncate)
            vectors = job.vectors(await asyncio.wrap_future(job.future), normalize=normalize)
        found = vectors[0] if job.single else vectors
        return (found, job.tokens) if return_count else found

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[int]:
        """As `Llama.generate`, whose steps are taken on threads: each token is its caller's to wait for."""
        tokens = self.llama.generate(*args, **kwargs)
        stepping = threading.Lock()  # whoever is cancelled leaves a thread behind that takes one step more

        def step() -> int | None:
            with stepping:
                return next(tokens, None)

        def end() -> None:
            with stepping:
                tokens.close()

        try:
            while (token := await _threaded(step)) is not None:
                yield token
        finally:
            await _threaded(end)

    async def close(self) -> None:
        """End what runs and free everything, unless the `Llama` was given."""
        if self._owns:
            await _threaded(self.llama.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "llama":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self.llama, name)
        return partial(_threaded, found) if name in _IN_THREADS else found

    async def _answer(
        self, kind: type[Call], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Answer | AsyncIterator[Answer]:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        options = given.pop("options")
        del given["self"]
        with told(kind.param):
            call = self.llama._call(kind, given, options)
        answering = Answering(self.llama._host, None, kind.param)
        streams = False
        try:
            with told(kind.param):
                await answering.start(partial(self._requests, call))
                if call.streams:
                    streams = True
                    return AsyncStream(answering, call.chunks(), kind.param)
                (answer,) = await answering.gather()
            return call.whole(answer)
        finally:
            if not streams:
                answering.cancel()

    def _requests(self, call: Call) -> list[Request]:
        with self.llama._host.using():
            return [call.request()]


async def _threaded(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.to_thread(work, *args, **kwargs)
