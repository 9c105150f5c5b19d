"""What crosses between a face and the engine: a request, the events that answer it, the handle to both."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onceread.native.params import SamplingParams

FinishReason = Literal["stop", "length"]

DEFAULT_NAMESPACE = "default"

TokenArray = np.ndarray[Any, np.dtype[np.int32]]
Logits = np.ndarray[Any, np.dtype[np.float32]]
LogitsProcessor = Callable[[TokenArray, Logits], Logits]
StoppingCriterion = Callable[[TokenArray, Logits], bool]


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
    # Called on the engine's thread, which everybody waits for, with the tokens evaluated so far (the prompt and
    # what was sampled, shape (n,)) and the logits behind them, shape (vocabulary,): copies, theirs to keep. The
    # first gives the logits to sample from. The second is asked after each token that was sampled: where it says
    # True, the reply is over, and that token is no part of it. What one of them raises ends this request alone.
    logits_processor: LogitsProcessor | None = field(default=None, compare=False)
    stopping_criteria: StoppingCriterion | None = field(default=None, compare=False)
    # Hand out the logits behind the prompt's tokens from this position on, as LogitsEvents. Logits are not kept
    # with what was read, so all from there is evaluated, whatever is known of it.
    logits_from: int | None = None
    # When the prompt is read, wait for RequestHandle.go_on and read on, until the request is cancelled. Nothing is
    # sampled. While it waits it is in nobody's way: see cursors.py.
    cursor: bool = False


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
    ids: tuple[
        int, ...
    ] = ()  # sampled since the last event of this reply, also where their text is held back


@dataclass(frozen=True, slots=True)
class LogitsEvent:
    """Logits behind tokens of the prompt, asked for by ``Request.logits_from``.

    ``rows`` has the shape (tokens, vocabulary): row ``i`` is what the model makes of all tokens up to and with
    the one at position ``start + i``. Ranges come in order; one that comes again replaces what was there.
    """

    index: int
    start: int
    rows: Logits = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """Reply ``index`` is complete."""

    index: int
    reason: FinishReason
    stop_string: str | None = None  # the client's stop string that ended it, if one did
    ids: tuple[
        int, ...
    ] = ()  # sampled since its last TextEvent: their text was no whole character, or a stop string


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


Event = TextEvent | LogitsEvent | FinishEvent | DoneEvent


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
        self._more: tuple[tuple[int, ...], bool] | None = None

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

    def go_on(self, tokens: Iterable[int], *, every: bool = False) -> None:
        """Of a ``Request.cursor`` whose prompt was read: read these tokens behind it, at least one.

        The logits of the last one, or of ``every`` one, come as LogitsEvents. It is over when those of the last
        one have come; only then may it be told to go on again.
        """
        assert self._more is None, "one step at a time"
        self._more = (tuple(tokens), every)
        if self._wake is not None:
            self._wake()

    # -- the engine's side ------------------------------------------------

    def bind(self, wake: Callable[[], None]) -> None:
        """Called once by the engine: how to wake it when the client cancels."""
        self._wake = wake

    @property
    def asks(self) -> bool:
        """Is there something for the engine to do about a request that waits?"""
        return self._cancelled or self._more is not None

    def take_more(self) -> tuple[tuple[int, ...], bool] | None:
        """What :meth:`go_on` was given, once."""
        more, self._more = self._more, None
        return more

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
    ids: list[list[int]] = field(
        default_factory=list
    )  # the tokens that were sampled, but for the one that ends
    logits: Logits | None = None  # shape (tokens, vocabulary), from Request.logits_from on, if that was given
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
    ids: list[list[int]] = [[] for _ in range(n)]
    rows: dict[int, Logits] = {}
    usage = Usage()
    explanation = None
    dropped: tuple[int, ...] = ()
    for event in handle:
        match event:
            case TextEvent():
                parts[event.index].append(event.text)
                logprobs[event.index].extend(event.logprobs)
                ids[event.index].extend(event.ids)
            case LogitsEvent():
                rows = {start: known for start, known in rows.items() if start < event.start}
                rows[event.start] = event.rows
            case FinishEvent():
                reasons[event.index] = event.reason
                stops[event.index] = event.stop_string
                ids[event.index].extend(event.ids)
            case DoneEvent():
                if event.error is not None:
                    raise event.error
                usage, explanation, dropped = event.usage, event.explanation, event.dropped
    return Completed(
        ["".join(p) for p in parts],
        reasons,
        stops,
        logprobs,
        ids,
        np.concatenate(list(rows.values())) if rows else None,
        usage,
        explanation,
        dropped,
    )
