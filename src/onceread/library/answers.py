"""Answers on their way to whoever called: waited for, or taken as an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from typing_extensions import Self

from onceread.engine.request import Completed, DoneEvent, Event, RequestHandle, gather
from onceread.library.errors import told
from onceread.server.usage import usage_body

Chunk = dict[str, Any]


def wait(handle: RequestHandle, param: str) -> Completed:
    """The whole answer. If the wait is broken off, so is the request. Raises what ended it."""
    try:
        with told(param):
            return gather(handle)
    except BaseException:
        handle.cancel()
        raise


class Chunks:
    """What a stream tells: the same chunks as over HTTP, but that the last one has the usage."""

    def __init__(
        self,
        begin: Callable[[], list[Chunk]],
        take: Callable[[Event], list[Chunk]],
        end: Callable[[], list[Chunk]],
    ) -> None:
        self.begin = begin
        self._take = take
        self._end = end

    def take(self, event: Event) -> list[Chunk]:
        """What an event adds; of a DoneEvent without error the end of the stream, too."""
        chunks = self._take(event)
        if isinstance(event, DoneEvent):
            chunks += self._end()
            # A chunk of its own would have no choices, which loops over llama-cpp-python's streams don't expect.
            chunks[-1]["usage"] = usage_body([event.usage]).model_dump()
        return chunks


class Stream(Iterator[Chunk]):
    """The chunks of an answer. Closing it, or letting go of it, ends the request."""

    def __init__(self, handle: RequestHandle, chunks: Chunks, param: str) -> None:
        self._handle = handle
        self._chunks = chunks
        self._param = param
        self._ready = deque(chunks.begin())
        self._over = False

    def __next__(self) -> Chunk:
        while not self._ready:
            if self._over:
                raise StopIteration
            event = self._handle.get()
            if isinstance(event, DoneEvent):
                self._over = True
                if event.error is not None:
                    with told(self._param):
                        raise event.error
            self._ready += self._chunks.take(event)
        return self._ready.popleft()

    @property
    def prompt_usage(self) -> dict[str, Any] | None:
        """What the prompt cost, as in a chunk's ``usage``, from the first token on: also if the stream is closed."""
        usage = self._handle.prompt_usage
        if usage is None:
            return None
        told = usage_body([usage]).model_dump()
        return {name: told[name] for name in ("prompt_tokens", "prompt_tokens_details")}

    def close(self) -> None:
        """End the request; there are no more chunks."""
        self._ready.clear()
        if not self._over:
            self._over = True
            self._handle.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_over"):
            self.close()
