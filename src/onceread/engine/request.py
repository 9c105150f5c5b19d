"""What crosses between a face and the engine: a request, the events that answer it, the handle to both."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from onceread.native.params import SamplingParams

FinishReason = Literal["stop", "length"]

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Shorter:
    """A prompt without its oldest turns."""

    prompt: tuple[int, ...]
    dropped: tuple[int, ...]  # which messages are not in it: indices, ascending


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to read and ``n`` replies to write.

    ``prompt`` holds token ids, at least one. ``alignable`` says that they came
    from text: then a stretch that a known path spells with other tokens is read
    from that path (what was sampled stays as it was sampled). Prompts given as
    token ids are taken to the letter.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None = up to the context limit; 0 reads the prompt only
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None  # None = off, else how many alternatives beside the chosen token
    namespace: str = DEFAULT_NAMESPACE  # nothing is shared between two namespaces
    session: str | None = None  # requests of one name are likely to come again together: see sessions.py
    alignable: bool = True
    ignore_eos: bool = False
    spelled: frozenset[int] = frozenset()  # control tokens that the reply's text shows, by their names
    reuse_moved: bool = (
        False  # also take what is known at other positions, though it read other text before it
    )
    least_moved: int = 64  # tokens of such a stretch
    shifts: bool = (
        True  # what is left when turns are dropped at the limit may be moved; else it is read again
    )
    # For prompts that may lose their oldest turns: what is left of this one in so many tokens. Called on the
    # engine's thread when the reply reaches the context's limit; None where there is no such limit to move.
    shorter: Callable[[int], Shorter | None] | None = None
    explain: bool = False  # say in the DoneEvent where the prompt left the nearest known path
    # Lengths of beginnings of the prompt that its client expects to need again: where a memory can only be gone
    # on from checkpoints, one is taken at each. Elsewhere any length will do, and they say nothing.
    keep_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a prompt left the nearest known path of its namespace, and how the two go on from there."""

    position: int  # tokens that the two have in common
    shared: str  # the last text that they have in common
    known: str  # how the known path goes on; empty if it ends there
    prompt: str  # how the prompt goes on; empty if it ends there


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log probability (natural log, before any sampler touched it)."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()  # (token, piece, logprob), best first


@dataclass(frozen=True, slots=True)
class TextEvent:
    """More of reply ``index``: whole UTF-8 characters, never part of a stop string. ``text`` may be empty."""

    index: int
    text: str
    tokens: int  # tokens sampled for this reply so far
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """Reply ``index`` is complete."""

    index: int
    reason: FinishReason
    stop_string: str | None = None  # the client's stop string that ended it, if one did


@dataclass(frozen=True, slots=True)
class CachedBySource:
    """Where the prompt tokens that were not evaluated came from. Sums to ``Usage.cached_tokens``."""

    context: int = 0
    memory: int = 0
    disk: int = 0
    shared: int = 0
    moved: int = 0

    def plus(self, other: CachedBySource) -> CachedBySource:
        """Source by source."""
        return CachedBySource(
            self.context + other.context,
            self.memory + other.memory,
            self.disk + other.disk,
            self.shared + other.shared,
            self.moved + other.moved,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """The numbers that happened. ``prompt_tokens == cached_tokens + evaluated_tokens``, always."""

    prompt_tokens: int = 0
    evaluated_tokens: int = 0  # prompt tokens that went through llama_decode for this request
    cached: CachedBySource = CachedBySource()
    completion_tokens: int = 0  # of all n replies
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0  # from the first slice to the first sampled token
    decode_seconds: float = 0.0  # from the first sampled token to the last
    moved_later: int = 0  # tokens moved while replies were written, when turns were dropped at the limit

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens - self.evaluated_tokens


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The last event of every request, whatever happened. ``error`` is None if all replies finished."""

    usage: Usage
    error: Exception | None = None
    explanation: Explanation | None = None  # if it was asked for
    dropped: tuple[int, ...] = ()  # messages that had to go while the reply was written: see Request.shorter


Event = TextEvent | FinishEvent | DoneEvent


class RequestHandle:
    """A running request as its client sees it. Thread-safe.

    The engine pushes events; one consumer takes them, either by iterating (blocks)
    or by :meth:`take`, after being told by ``notify`` (called on the engine's
    thread, must not block) that there is something to take.
    """

    def __init__(self, request: Request, notify: Callable[[], None] | None = None) -> None:
        self.request = request
        self.created = time.monotonic()
        self.prompt_usage: Usage | None = None  # what the prompt cost: set before the first token is told of
        self._notify = notify
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancelled = False
        self._wake: Callable[[], None] | None = None

    def take(self) -> Event | None:
        """The next event, or None if there is none yet. Never blocks."""
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def get(self, timeout: float | None = None) -> Event:
        """The next event, waiting for it. Raises ``queue.Empty`` after ``timeout`` seconds."""
        return self._events.get(timeout=timeout)

    def __iter__(self) -> Iterator[Event]:
        """Every event up to and including the :class:`DoneEvent`."""
        while True:
            event = self.get()
            yield event
            if isinstance(event, DoneEvent):
                return

    def cancel(self) -> None:
        """Ask the engine to stop within one slice. The events end with a DoneEvent carrying `Cancelled`."""
        self._cancelled = True
        if self._wake is not None:
            self._wake()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    # -- the engine's side ------------------------------------------------

    def bind(self, wake: Callable[[], None]) -> None:
        """Called once by the engine: how to wake it when the client cancels."""
        self._wake = wake

    def push(self, event: Event) -> None:
        self._events.put(event)
        if self._notify is not None:
            self._notify()


@dataclass(slots=True)
class Completed:
    """A request's events, gathered: for callers that do not stream."""

    texts: list[str] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)
    stop_strings: list[str | None] = field(default_factory=list)  # which ended each reply, if one did
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)
    usage: Usage = Usage()
    explanation: Explanation | None = None
    dropped: tuple[int, ...] = ()


def gather(handle: RequestHandle) -> Completed:
    """Wait for the whole answer. Raises the error that ended it, if one did."""
    n = handle.request.n
    parts: list[list[str]] = [[] for _ in range(n)]
    reasons: list[FinishReason] = ["length"] * n
    stops: list[str | None] = [None] * n
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
    usage = Usage()
    explanation = None
    dropped: tuple[int, ...] = ()
    for event in handle:
        match event:
            case TextEvent():
                parts[event.index].append(event.text)
                logprobs[event.index].extend(event.logprobs)
            case FinishEvent():
                reasons[event.index] = event.reason
                stops[event.index] = event.stop_string
            case DoneEvent():
                if event.error is not None:
                    raise event.error
                usage, explanation, dropped = event.usage, event.explanation, event.dropped
    return Completed(["".join(p) for p in parts], reasons, stops, logprobs, usage, explanation, dropped)
