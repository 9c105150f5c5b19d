"""The bridge between the event loop and the engine's thread: several engine requests, awaited as one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio import to_thread
from fastapi import Request as HttpRequest
from starlette.types import Receive

from onceread.engine.request import (
    Completed,
    DoneEvent,
    Event,
    Explanation,
    FinishEvent,
    Request,
    RequestHandle,
    TextEvent,
    Usage,
)
from onceread.server.errors import ClientGone, known
from onceread.server.metrics import Metrics

T = TypeVar("T")


class Submits(Protocol):
    """An engine, or what stands for one."""

    def submit(self, request: Request, notify: Callable[[], None] | None = None) -> RequestHandle:
        """Queue a request; ``notify`` is called, on any thread, whenever an event can be taken."""
        ...


class Answering:
    """One HTTP request's engine requests, one for each prompt.

    Made on the event loop and used there. Whoever makes one calls :meth:`cancel` when done with it,
    however that came: it stops what still runs and does nothing otherwise.
    """

    def __init__(self, engine: Submits, metrics: Metrics | None, prompt_param: str) -> None:
        """``prompt_param`` is the parameter that errors about the prompt name."""
        self._engine = engine
        self._metrics = metrics
        self._prompt_param = prompt_param
        self._started = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._something = asyncio.Event()
        self._told = False
        self._cancelled = False
        self._handles: list[RequestHandle] = []
        self._running: set[int] = set()
        self._first_token_seen = False
        self._ahead: deque[tuple[int, Event]] = deque()
        self.usages: list[Usage] = []
        self._explanations: dict[int, Explanation] = {}
        self.dropped: tuple[int, ...] = ()  # messages that had to go while the reply was written

    async def start(self, prepare: Callable[[], Sequence[Request]], *, within: float | None = None) -> None:
        """Make the requests on a thread, hand them to the engine, and wait for the first event.

        Not longer than ``within`` seconds for the event, if that is given.

        Rendering and tokenizing a long prompt takes long enough to make other streams stutter.
        Waiting means that what goes wrong until then is still an error of its own, not a line in
        a stream that began well. Raises ApiError, or what is a bug of ours.
        """
        await on_thread(partial(self._submit, prepare), self._prompt_param)
        self._ahead.extend(await self._drained(within))
        for _, event in self._ahead:
            self._raise_error(event)

    async def events(self, idle: float | None = None) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """What has happened since the last look, as (prompt, event), until all requests are done.

        With ``idle`` an empty list comes whenever nothing has happened for so many seconds.

        Raises the error of a request that failed. What one wake-up finds comes as one list, so a slow
        reader costs less and not more.
        """
        while self._ahead or self._running:
            batch = list(self._ahead) if self._ahead else await self._drained(idle)
            self._ahead.clear()
            good: list[tuple[int, Event]] = []
            for prompt, event in batch:
                if isinstance(event, DoneEvent):
                    if event.error is not None and good:
                        yield good  # what came before the error is the client's
                    self._raise_error(event)
                    self.usages.append(event.usage)
                    self.dropped = event.dropped
                    if event.explanation is not None:
                        self._explanations[prompt] = event.explanation
                good.append((prompt, event))
            yield good

    async def gather(self) -> list[Completed]:
        """All events until the end, as one answer for each prompt."""
        answers = []
        for handle in self._handles:
            n = handle.request.n
            answers.append(
                Completed(
                    [""] * n, ["length"] * n, [None] * n, [[] for _ in range(n)], [[] for _ in range(n)]
                )
            )
        parts: list[list[list[str]]] = [[[] for _ in answer.texts] for answer in answers]
        async for batch in self.events():
            for prompt, event in batch:
                match event:
                    case TextEvent():
                        parts[prompt][event.index].append(event.text)
                        answers[prompt].logprobs[event.index].extend(event.logprobs)
                        answers[prompt].ids[event.index].extend(event.ids)
                    case FinishEvent():
                        answers[prompt].reasons[event.index] = event.reason
                        answers[prompt].stop_strings[event.index] = event.stop_string
                        answers[prompt].ids[event.index].extend(event.ids)
                    case DoneEvent():
                        answers[prompt].usage = event.usage
                        answers[prompt].explanation = event.explanation
                        answers[prompt].dropped = event.dropped
        for answer, texts in zip(answers, parts, strict=True):
            answer.texts = ["".join(text) for text in texts]
        return answers

    @property
    def explanations(self) -> list[Explanation | None]:
        """For each prompt, once all are done."""
        return [self._explanations.get(prompt) for prompt in range(len(self._handles))]

    @property
    def prompt_usages(self) -> list[Usage | None]:
        """For each prompt what it cost, None until its first token is there."""
        return [handle.prompt_usage for handle in self._handles]

    def cancel(self) -> None:
        """Stop whatever still runs. Safe to call at any time, and again."""
        self._cancelled = True
        for prompt, handle in enumerate(self._handles):
            if prompt in self._running:
                handle.cancel()

    def _submit(self, prepare: Callable[[], Sequence[Request]]) -> None:
        for prompt, request in enumerate(prepare()):
            self._running.add(prompt)
            # Kept as soon as it exists: if a later one is refused, cancel() must know of this one.
            self._handles.append(self._engine.submit(request, notify=self._notify))
            if self._cancelled:  # the client went while this thread was busy: cancel() came too early
                self._handles[-1].cancel()
                return

    def _notify(self) -> None:
        # On the engine's thread. One wake-up is enough for any number of events, and crossing
        # threads is what costs.
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._something.set)

    async def _drained(self, seconds: float | None = None) -> list[tuple[int, Event]]:
        """What there is. Waits until there is something, or for ``seconds``."""
        found: list[tuple[int, Event]] = []
        while not found and self._running:
            if seconds is None:
                await self._something.wait()
            else:
                try:
                    await asyncio.wait_for(self._something.wait(), seconds)
                except asyncio.TimeoutError:
                    break
            # Both before looking: an event that comes after the look must wake us again.
            self._something.clear()
            self._told = False
            for prompt in sorted(self._running):
                while (event := self._handles[prompt].take()) is not None:
                    found.append((prompt, event))
                    if isinstance(event, DoneEvent):
                        self._running.discard(prompt)
        if not self._first_token_seen and any(isinstance(event, TextEvent) for _, event in found):
            self._first_token_seen = True
            if self._metrics is not None:
                self._metrics.first_token(time.monotonic() - self._started)
        return found

    def _raise_error(self, event: Event) -> None:
        if isinstance(event, DoneEvent) and event.error is not None:
            raise known(event.error, self._prompt_param) or event.error from event.error


async def on_thread(work: Callable[[], T], prompt_param: str) -> T:
    """The result of ``work`` on a prompt, done on a thread. Raises ApiError, or what is a bug of ours."""
    try:
        return await to_thread.run_sync(work)
    except Exception as error:
        raise known(error, prompt_param) or error from error


async def until_disconnect(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. If the client goes first, ``work`` is cancelled and ClientGone raised."""
    return await race(work, request.receive)


async def race(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """As :func:`until_disconnect`, for who has the bare ASGI channel."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            if not one.done():
                one.cancel()
        # Until it has ended, it may still be submitting; afterwards cancel() sees all there is.
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
