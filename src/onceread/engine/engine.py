"""The engine as everybody else sees it: submit a request from any thread, get its events."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from onceread.cache.store import Store
from onceread.engine import cursors
from onceread.engine.config import EngineConfig, EngineState, EngineStats, context_params
from onceread.engine.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    MovedUnavailable,
    QueueFull,
    ShuttingDown,
)
from onceread.engine.exact import exact_config
from onceread.engine.reply import Job, Reply
from onceread.engine.request import Request, RequestHandle
from onceread.engine.scheduler import Scheduler
from onceread.engine.sequence import as_tokens
from onceread.engine.storage import open_store
from onceread.engine.turns import Turns
from onceread.native import checkpoints
from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.errors import BegunOtherwise, GrammarInvalid, SamplerInvalid, StateLayoutUnknown
from onceread.native.model import Model
from onceread.native.samplers import Sampler
from onceread.native.shift import refusal

logger = logging.getLogger(__name__)

_MAX_FAILURES = 3  # decodes that fail in a row before the engine gives up
_MAX_N = 128
_DISK_POLL = 0.05  # seconds; reads wake the engine themselves, this is for timeouts
_LAST_EXPORTS = 3.0  # seconds, when it ends, to give the store what it lacks
_LAST_WRITES = 5.0  # and to write that to disk


class Engine:
    """Owns one context and the thread that alone may touch it.

    ``start()`` makes the context; ``close()`` must be called before the model is closed.
    """

    def __init__(self, model: Model, config: EngineConfig | None = None) -> None:
        self.model = model
        config = config or EngineConfig()
        self.config = exact_config(model, config) if config.exact else config
        self.cant_move = _cant_move(
            model, self.config
        )  # why moved stretches can't be reused; None if they can
        if config.reuse_moved and self.cant_move:
            raise MovedUnavailable(f"reuse_moved is not possible: {self.cant_move}; leave out --reuse-moved")
        self.params = context_params(
            model, self.config
        )  # fails here, on the caller's thread, if it can't fit
        self.turns = Turns()  # for whoever else computes on the same cores
        self.state: EngineState = "loading"
        self.failure: str | None = None
        self.n_ctx = self.params.n_ctx
        self.limit = self._positions()
        self._inbox: deque[Job] = deque()
        self._wake = threading.Condition()
        self._order = 0
        self._started = time.monotonic()
        self._closing = False
        self._deadline = float("inf")
        self._ready = threading.Event()
        self._start_error: BaseException | None = None
        self._scheduler: Scheduler | None = None
        self.store: Store | None = None  # set before start() returns
        self._woken = False
        self._commands: deque[Callable[[Scheduler], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="onceread-engine", daemon=True)

    # -- any thread --------------------------------------------------------

    def start(self) -> Engine:
        """Make the context and begin. Raises what making the context raised."""
        self._thread.start()
        self._ready.wait()
        if self._start_error is not None:
            self._thread.join()
            raise self._start_error
        return self

    def submit(self, request: Request, notify: Callable[[], None] | None = None) -> RequestHandle:
        """Queue a request. ``notify`` is called on the engine's thread whenever an event can be taken.

        Raises ContextLengthExceeded, QueueFull, InvalidRequest, ShuttingDown, EngineFailed at once.
        """
        if self.on_own_thread:
            raise InvalidRequest("a hook can't use the model that it is called for: nobody could answer it")
        self._refuse_if_down()
        self._validate(request)
        if self.store is not None:
            self.store.refresh()
        handle = RequestHandle(request, notify)
        handle.bind(self._wake_up)
        job = Job(handle, 0)
        job.prompt_tokens = len(request.prompt)
        # Samplers are made here, for a large grammar or DRY's table takes a while and must not hold up a decode.
        self._add_replies(job)
        with self._wake:
            try:
                self._refuse_if_down()
                stats = self.stats()
                # Whoever finds a free slot does not wait, though it may take a moment until the engine looks.
                free = max(0, self.config.parallel - stats.running - stats.set_aside)
                if stats.waiting >= self.config.queue_limit + free:
                    raise QueueFull(stats.waiting, self._retry_after(stats.waiting))
            except BaseException:
                for reply in job.replies:
                    reply.end()
                raise
            self._order += 1
            job.order = self._order
            self._inbox.append(job)
            self._wake.notify()
        return handle

    @property
    def on_own_thread(self) -> bool:
        """Is this the engine's thread, as in a hook? Nothing may be waited for there."""
        return threading.current_thread() is self._thread

    def stats(self) -> EngineStats:
        """Totals and how things stand; each number is true, though not all of the same instant."""
        if self._scheduler is None:
            return EngineStats()
        stats = self._scheduler.stats()
        return replace(stats, waiting=stats.waiting + len(self._inbox))

    def close(self, grace: float = 5.0) -> None:
        """Take no more requests, give the open ones ``grace`` seconds, then end them with ShuttingDown."""
        with self._wake:
            if not self._closing:
                self._closing = True
                self._deadline = time.monotonic() + grace
            else:
                self._deadline = min(self._deadline, time.monotonic() + grace)
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self, namespaces: Collection[str] | None) -> int:
        """Forget everything that was read in these namespaces, or in all: bytes freed in the store.

        What runs just now goes on. Blocks until it is done.
        """
        done = threading.Event()

        def forget(scheduler: Scheduler) -> None:
            try:
                scheduler.forget(namespaces)
            finally:
                done.set()

        with self._wake:
            self._refuse_if_down()
            self._commands.append(forget)
            self._wake.notify()
        done.wait()
        return self.store.clear(namespaces) if self.store is not None else 0

    def wait_remembered(self, namespace: str, tokens: Collection[int], timeout: float) -> bool:
        """Wait until the store holds all of ``tokens``. False if it does not in ``timeout`` seconds."""
        return self.store is not None and self.store.wait_stored(namespace, as_tokens(tokens), timeout)

    def _wake_up(self) -> None:
        with self._wake:
            self._woken = True
            self._wake.notify()

    def _positions(self) -> int:
        """Tokens of one request, prompt and reply together, at most."""
        cells = self.n_ctx - 1 if self.config.exact else self.n_ctx  # one for what pads a batch
        if self.config.rope.scales:
            return cells
        return min(cells, self.model.n_ctx_train or cells)

    def _refuse_if_down(self) -> None:
        if self._closing:
            raise ShuttingDown("the server is shutting down")
        if self.state == "failed":
            raise EngineFailed(f"the engine has stopped: {self.failure}")

    def _validate(self, request: Request) -> None:
        n = len(request.prompt)
        if n == 0:
            raise InvalidRequest("the prompt is empty", "prompt")
        size = self.model.vocab.size
        if min(request.prompt) < 0 or max(request.prompt) >= size:
            raise InvalidRequest(f"the prompt holds a token id outside [0, {size})", "prompt")
        if not 1 <= request.n <= _MAX_N:
            raise InvalidRequest(f"n must be between 1 and {_MAX_N}", "n")
        if request.max_tokens is not None and request.max_tokens < 0:
            raise InvalidRequest("max_tokens must not be negative", "max_tokens")
        cursors.check(request)
        if n >= self.limit + request.cursor:  # a cursor may fill the last position too
            raise ContextLengthExceeded(n, self.limit)
        if request.reuse_moved and self.cant_move:
            raise InvalidRequest(f"reuse_moved is not possible here: {self.cant_move}", "reuse_moved")
        if request.least_moved < 1:
            raise InvalidRequest("the least length of a moved stretch must be at least 1", "least_moved")

    def _add_replies(self, job: Job) -> None:
        request = job.request
        try:
            for index in range(request.n):
                sampling = request.sampling
                if sampling.seed is not None:
                    sampling = replace(sampling, seed=(sampling.seed + index) & 0xFFFFFFFF)
                sampler = Sampler(self.model.vocab, sampling, n_ctx=self.n_ctx, ignore_eos=request.ignore_eos)
                job.replies.append(Reply(job, index, sampler, self.model.vocab))
        except SamplerInvalid as error:
            for reply in job.replies:
                reply.end()
            raise InvalidRequest(str(error), _param(error, request)) from error

    def _retry_after(self, waiting: int) -> int:
        stats = self.stats()
        done = max(1, stats.requests_total - stats.running - stats.waiting)
        each = (time.monotonic() - self._started) / done
        return int(min(60, max(1, each * waiting / 2)))

    # -- the engine's thread -----------------------------------------------

    def _run(self) -> None:
        context: Context | None = None
        try:
            context = Context(self.model, self.params)
            self.n_ctx = context.n_ctx
            self.limit = self._positions()
            sample = self._warm_up(context)
            self.store = open_store(context, self.config, sample, self._wake_up)
            scheduler = Scheduler(context, self.config, self.limit, self.store, self.turns)
        except BaseException as error:  # noqa: BLE001 - start() raises it on its caller's thread
            if self.store is not None:
                self.store.close(0)
            if context is not None:
                context.close()
            self._start_error = error
            self.state = "failed"
            self.failure = str(error)
            self._ready.set()
            return
        self._scheduler = scheduler
        self.state = "ok"
        self._ready.set()
        try:
            self._loop(scheduler)
        except BaseException as error:
            logger.exception("the engine stopped")
            self.failure = f"{type(error).__name__}: {error}"
            self.state = "failed"
            self._take_inbox(scheduler)
            scheduler.fail_all(EngineFailed(f"the engine has stopped: {self.failure}"))
        finally:
            self._refuse_rest(scheduler)
            if self.state != "failed":
                self._remember_rest(scheduler)
            if self.store is not None:
                self.store.close(_LAST_WRITES)
            scheduler.close()
            context.close()

    def _remember_rest(self, scheduler: Scheduler) -> None:
        until = time.monotonic() + _LAST_EXPORTS
        try:
            while time.monotonic() < until and scheduler.remember(once=False):
                pass
        except Exception:
            logger.exception("what was read last could not be remembered")

    def _warm_up(self, context: Context) -> bytes:
        """Decode something, for the first decode touches every page of the weights. The attention it left."""
        batch = Batch(4)
        vocab = self.model.vocab
        token = max(vocab.bos, vocab.eos, 0)
        sample = b""
        try:
            batch.add([token, token], 0, 0, logits_last=True)
            context.decode(batch)
            if not checkpoints.needs_checkpoints(context):
                sample = context.export_sequence(0, 2)
            else:
                with suppress(StateLayoutUnknown):  # then nothing can be stored, and open_store says so
                    sample = checkpoints.segment(context, 0, 0, 2)
            context.clear()
        finally:
            batch.close()
        return sample

    def _loop(self, scheduler: Scheduler) -> None:
        failures = 0
        while True:
            with self._wake:
                while scheduler.idle and not (self._inbox or self._closing or self._commands):
                    self._wake.wait()
                self._woken = False
            self._take_inbox(scheduler)
            while self._commands:
                self._commands.popleft()(scheduler)
            if self._closing and (scheduler.idle or time.monotonic() >= self._deadline):
                scheduler.end_all(ShuttingDown("the server is shutting down; this request was not finished"))
                return
            try:
                if not scheduler.turn():
                    self._wait_for_disk()
                failures = 0
            except Exception as error:
                # llama.cpp failed, or we have a bug. Either way the context's content is in doubt.
                failures += 1
                logger.exception("a turn failed; its requests end with an error, and the context is emptied")
                scheduler.fail_all(EngineFailed(f"{type(error).__name__}: {error}"))
                if failures >= _MAX_FAILURES:
                    raise

    def _wait_for_disk(self) -> None:
        """Nothing can be done until a chunk was read, or a request comes or goes."""
        with self._wake:
            if not (self._woken or self._inbox or self._closing or self._commands):
                self._wake.wait(_DISK_POLL)

    def _take_inbox(self, scheduler: Scheduler) -> None:
        while self._inbox:
            with self._wake:
                job = self._inbox.popleft()
                scheduler.enqueue(job)

    def _refuse_rest(self, scheduler: Scheduler) -> None:
        with self._wake:
            self._closing = True
            while self._commands:
                self._commands.popleft()(scheduler)
            while self._inbox:
                job = self._inbox.popleft()
                for reply in job.replies:
                    reply.end()
                job.close(ShuttingDown("the server is shutting down"))


def _param(error: SamplerInvalid, request: Request) -> str | None:
    constraint = request.sampling.constraint
    if isinstance(error, BegunOtherwise):
        return None  # the prompt's own, whatever it is called there
    return constraint.param if constraint and isinstance(error, GrammarInvalid) else "logit_bias"


def _cant_move(model: Model, config: EngineConfig) -> str | None:
    if config.exact:
        return "exact mode excludes it"
    return refusal(model, config.cache_type_k)
