"""Texts to vectors: a queue, and a thread with a context of its own beside the one that chats."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from onceread.engine.embedding_config import EmbeddingConfig, EmbeddingPlan, embedding_plan
from onceread.engine.errors import EngineFailed, InputTooLong, InvalidRequest, QueueFull, ShuttingDown
from onceread.engine.pooling import Pooler
from onceread.engine.slicing import Pace
from onceread.engine.turns import Turns
from onceread.native.batch import Batch
from onceread.native.embedding import EmbeddingContext, Vector, nature_of
from onceread.native.errors import DecodeFailed, ModelUnsupported, NativeError
from onceread.native.model import Model

logger = logging.getLogger(__name__)

Tokens = Sequence[int]
Embedded = list[Vector]


@dataclass(frozen=True, slots=True)
class EmbeddingStats:
    """Totals since the start, and how things stand now."""

    embedding_requests_total: int = 0  # finished; not those that were cancelled or failed
    embedding_tokens_total: int = 0
    embedding_waiting: int = 0


@dataclass(eq=False, slots=True)
class _Job:
    inputs: Sequence[Tokens]
    future: Future[Embedded] = field(default_factory=Future)
    begun: int = 0
    vectors: dict[int, Vector] = field(default_factory=dict)

    @property
    def gone(self) -> bool:
        """Does nobody wait for it any more?"""
        return self.future.done()


@dataclass(eq=False, slots=True)
class _Reading:
    job: _Job
    index: int  # of the input in its job
    tokens: Tokens
    pooler: Pooler

    @property
    def left(self) -> int:
        return len(self.tokens) - self.pooler.n


class EmbeddingEngine:
    """Owns a context for embeddings, made when it is first needed, and the thread that alone may touch it.

    Inputs of several requests go into one decode, each as a sequence of its own. Nothing is kept between
    decodes but of an input that is longer than one. ``close()`` must be called before the model is closed.
    """

    def __init__(
        self,
        model: Model,
        config: EmbeddingConfig | None = None,
        turns: Turns | None = None,
        chats: Callable[[], int] = lambda: 0,
    ) -> None:
        """``turns`` is the chat engine's, and ``chats`` tells how many it is answering."""
        self.model = model
        self.config = config or EmbeddingConfig()
        self._turns = turns or Turns()
        self._chats = chats
        self._pace = Pace(self.config.slice_seconds, self.config.min_slice)
        self._planned: EmbeddingPlan | None = None
        self._planning = threading.Lock()
        self._jobs: deque[_Job] = deque()  # also those that are being read, until all their inputs are
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._deadline = float("inf")
        self._context: EmbeddingContext | None = None
        self._batch: Batch | None = None
        self._requests = self._tokens = 0
        self._busy = 0.0  # seconds inside llama_decode

    # -- any thread --------------------------------------------------------

    def plan(self) -> EmbeddingPlan:
        """Sizes, found out at the first use. Raises InvalidRequest if this model can't embed, or EngineFailed."""
        with self._planning:
            if self._planned is None:
                try:
                    self._planned = embedding_plan(self.model, nature_of(self.model), self.config)
                except ModelUnsupported as error:
                    raise InvalidRequest(str(error), "model") from error
                except NativeError as error:
                    raise EngineFailed(str(error)) from error
            return self._planned

    def start(self) -> EmbeddingEngine:
        """Make the context now rather than at the first request. Raises what making it raised."""
        self.plan()
        self._enqueue(_Job(())).result()
        return self

    def submit(self, inputs: Sequence[Tokens]) -> Future[Embedded]:
        """Queue a request: a vector for each input, pooled and not normalized. Cancelling the future stops it.

        Raises InputTooLong, InvalidRequest, QueueFull, ShuttingDown, EngineFailed at once.
        """
        plan = self.plan()
        size = self.model.vocab.size
        for index, tokens in enumerate(inputs):
            if not tokens:
                raise InvalidRequest(f"input {index} holds no token")
            if len(tokens) > plan.limit:
                raise InputTooLong(index, len(tokens), plan.limit)
            if min(tokens) < 0 or max(tokens) >= size:
                raise InvalidRequest(f"input {index} holds a token id outside [0, {size})")
        return self._enqueue(_Job(inputs))

    def stats(self) -> EmbeddingStats:
        return EmbeddingStats(self._requests, self._tokens, max(0, len(self._jobs) - 1))

    def close(self, grace: float = 5.0) -> None:
        """Take no more requests, give the open ones ``grace`` seconds, then end them with ShuttingDown."""
        with self._wake:
            self._closing = True
            self._deadline = min(self._deadline, time.monotonic() + grace)
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def __enter__(self) -> EmbeddingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, job: _Job) -> Future[Embedded]:
        with self._wake:
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            waiting = len(self._jobs) - 1  # the first is being read
            if waiting >= self.config.queue_limit:
                raise QueueFull(waiting, self._retry_after())
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onceread-embeddings", daemon=True)
                self._thread.start()
            self._wake.notify()
        return job.future

    def _retry_after(self) -> int:
        unread = sum(len(tokens) for job in self._jobs for tokens in job.inputs[job.begun :])
        seconds = unread * self._busy / self._tokens if self._tokens else 1.0
        return int(min(60, max(1, seconds / 2)))

    # -- the thread --------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        finally:
            with self._wake:
                self._closing = True
                jobs = list(self._jobs)
                self._jobs.clear()
            for job in jobs:
                _fail(job, ShuttingDown("the server is shutting down; this request was not finished"))
            self._drop_context()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._jobs or self._closing):
                self._wake.wait()
            return bool(self._jobs) and not self._too_late

    @property
    def _too_late(self) -> bool:
        return self._closing and time.monotonic() >= self._deadline

    def _turn(self) -> None:
        """Read some inputs, or make the context that is needed for that."""
        group: list[_Reading] = []
        try:
            context = self._ready()
            group = self._next_group()
            self._read(context, group)
        except Exception as error:
            # llama.cpp failed, or we have a bug. What the context holds is in doubt: the next has a new one.
            logger.exception("embedding failed; its requests end with an error")
            self._drop_context()
            for job in {reading.job for reading in group} or set(self._jobs):
                _fail(job, EngineFailed(f"{type(error).__name__}: {error}"))
        self._settle()

    def _ready(self) -> EmbeddingContext:
        if self._context is None:
            params = self.plan().params
            self._context = EmbeddingContext(self.model, params)
            self._batch = Batch(params.n_batch)
        return self._context

    def _drop_context(self) -> None:
        if self._batch is not None:
            self._batch.close()
            self._batch = None
        if self._context is not None:
            self._context.close()
            self._context = None

    def _next_group(self) -> list[_Reading]:
        """Inputs that are read together: as many as fit into one decode, or one that is longer than that.

        Another request has the first place each time, so that one of a thousand inputs holds nobody up for long.
        """
        plan = self.plan()
        room = plan.fill
        group: list[_Reading] = []
        for job in list(self._jobs):
            while not job.gone and job.begun < len(job.inputs) and len(group) < plan.params.n_seq_max:
                tokens = job.inputs[job.begun]
                if group and len(tokens) > room:
                    break
                group.append(_Reading(job, job.begun, tokens, Pooler(plan.pooling, plan.dimensions)))
                job.begun += 1
                room -= len(tokens)
        with self._wake:
            self._jobs.rotate(-1)
        return group

    def _read(self, context: EmbeddingContext, group: list[_Reading]) -> None:
        try:
            while any(reading.left for reading in group):
                if self._too_late or all(reading.job.gone for reading in group):
                    return
                self._decode(context, group)
        finally:
            context.clear()
        for reading in group:
            vector = reading.pooler.vector()
            if not np.isfinite(vector).all():
                raise DecodeFailed("the model's numbers are not finite")
            reading.job.vectors[reading.index] = vector
            self._tokens += len(reading.tokens)

    def _decode(self, context: EmbeddingContext, group: list[_Reading]) -> None:
        """The next tokens of the group, as many as one decode may take."""
        batch, plan = self._batch, self.plan()
        assert batch is not None
        batch.clear()
        chats = self._chats()
        room = min(plan.fill, self._pace.beside(chats)) if chats else plan.fill
        parts: list[tuple[_Reading, int, int]] = []
        for sequence, reading in enumerate(group):
            n = reading.left if plan.whole else min(reading.left, room)
            if n == 0 or (n > room and parts):
                continue  # it is read already, or fits into the next decode
            start = reading.pooler.n
            tokens = reading.tokens[start : start + n]
            end = batch.add(tokens, start, sequence, logits_last=False, outputs=True) + 1
            parts.append((reading, end - n, end))
            room = max(0, room - n)
        with self._turns:
            started = time.perf_counter()
            vectors = context.decode(batch)
            seconds = time.perf_counter() - started
        self._busy += seconds
        self._pace.observe(batch.n, seconds)
        for reading, first, end in parts:
            reading.pooler.add(vectors[first:end])

    def _settle(self) -> None:
        """Whoever has everything gets it, and leaves the queue; so does whoever failed or went away."""
        with self._wake:
            done = [job for job in self._jobs if job.gone or len(job.vectors) == len(job.inputs)]
            for job in done:
                self._jobs.remove(job)
        for job in done:
            if job.inputs and not job.gone:
                self._requests += 1
            if not job.gone and job.future.set_running_or_notify_cancel():
                job.future.set_result([job.vectors[i] for i in range(len(job.inputs))])


def _fail(job: _Job, error: Exception) -> None:
    if not job.gone and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
