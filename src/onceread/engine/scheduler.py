"""The turns of the loop: who is let in, what goes into the next batch, who must step aside.

Runs on the engine's thread alone. One turn is one llama_decode: a token for each reply that is being
written, and as much of the prompts being read as the slice allows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from onceread.cache.store import Store
from onceread.engine.alignment import Aligner
from onceread.engine.aside import bring_back, set_aside
from onceread.engine.config import EngineConfig, EngineStats
from onceread.engine.errors import Cancelled
from onceread.engine.explain import explain
from onceread.engine.following import Followers, promises, will_be_forked
from onceread.engine.loading import Loading
from onceread.engine.marks import Marker
from onceread.engine.planner import Plan, Planner
from onceread.engine.pool import SequencePool
from onceread.engine.recall import Recaller
from onceread.engine.remember import Rememberer
from onceread.engine.reply import Job, Phase, Reply
from onceread.engine.sequence import Sequence
from onceread.engine.slicing import Pace, divide
from onceread.engine.totals import Totals
from onceread.native.batch import Batch
from onceread.native.context import Context

logger = logging.getLogger(__name__)

# A reply set aside comes back when it could go on for this many tokens, so that two do not swap at every step.
_RESUME_MARGIN = 64
_CALM = 0.02  # seconds of exports at a time while nothing runs, so that a new request waits no longer


@dataclass(slots=True)
class _Entry:
    """A reply's part of the batch: ``n`` tokens, its logits at ``index`` if it wants them."""

    reply: Reply
    n: int
    index: int
    samples: bool


class Scheduler:
    """Owns the queue, the running replies and the pool."""

    def __init__(
        self, context: Context, config: EngineConfig, limit: int, store: Store | None = None
    ) -> None:
        vocab = context.model.vocab
        self._context = context
        self._config = config
        self._limit = limit
        self._store = store
        self.pool = SequencePool(context)
        self._planner = Planner(self.pool, Aligner(vocab.pieces, vocab.control_mask), store, limit)
        self._loading = Loading(Recaller(context, self.pool, store, config.io_timeout) if store else None)
        self._rememberer: Rememberer | None = None
        if store is not None:
            self._rememberer = Rememberer(context, self.pool, store)
            self.pool.before_eviction = self._rememberer.finish
        self._batch = Batch(context.n_batch)
        self.waiting: deque[Reply] = deque()
        self.active: list[Reply] = []  # reading or writing, oldest first
        self.aside: list[Reply] = []  # oldest first
        self._followers = Followers()
        self._marker = Marker(vocab.eog_tokens)
        self._parallel = min(config.parallel, self.pool.most_running)
        self._open: dict[int, Job] = {}  # by age; whatever fails where, nobody may be left without an answer
        self._clock = 0
        self._pace = Pace(config.slice_seconds, config.min_slice)
        self.totals = Totals()

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.active or self.aside or self.behind)

    @property
    def behind(self) -> bool:
        """Is there something finished that the store does not have yet?"""
        return self._rememberer is not None and self._rememberer.behind

    def enqueue(self, job: Job) -> None:
        self.totals.requests += 1
        self._open[job.order] = job
        self.waiting.extend(job.replies)

    def stats(self) -> EngineStats:
        """How things stand, and the totals since the start. May be called from any thread."""
        open_jobs = list(self._open.values())  # a copy in one step, which a running turn can't disturb
        return self.totals.stats(
            self.pool,
            running=len(self.active),
            waiting=sum(1 for job in open_jobs if not job.admitted),
            set_aside=len(self.aside),
        )

    def turn(self) -> bool:
        """One batch, and everything that must happen around it. False if there was nothing to do but wait."""
        self._sweep_cancelled()
        self._bring_back()
        self._admit()
        loaded = self._loading.turn(self.active, self._clock)
        if self._config.check:
            self.pool.check()
        entries = self._fill_batch()
        if entries:
            self._compute(entries)
        remembered = self.remember(once=bool(self.active))
        return bool(entries) or loaded or remembered

    def remember(self, *, once: bool) -> bool:
        """Give the store one chunk, or if nobody waits for the next token, some. False if it lacks none."""
        if self._rememberer is None:
            return False
        until = time.perf_counter() + (0.0 if once else _CALM)
        remembered = False
        while self._rememberer.step():
            remembered = True
            if time.perf_counter() >= until:
                break
        self.pool.trim(self._config.resident_cells, self._clock)
        return remembered

    def _compute(self, entries: list[_Entry]) -> None:
        started = time.perf_counter()
        padded = self._config.exact and self._batch.n == 1
        if padded:
            self._batch.add([entries[0].reply.prompt[0]], 0, self._context.tmp, logits_last=False)
        self._context.decode(self._batch)
        if padded:
            self._context.drop(self._context.tmp)
        self.totals.decode_calls += 1
        self._account(entries, time.perf_counter() - started)
        self._take_checkpoints(entries)
        for entry in entries:
            if entry.samples:
                self._after_logits(entry)

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``; the context is emptied, for its content is in doubt."""
        for job in self._jobs():
            for reply in job.open_replies:
                self._loading.cancel(reply)
                reply.sequence = None
                reply.end()
            self._close(job, error)
        self.waiting.clear()
        self.active.clear()
        self.aside.clear()
        self._followers.clear()
        self.pool.reset()

    def forget(self, namespaces: Collection[str] | None) -> None:
        """Drop the finished sequences of these namespaces, or all."""
        self.pool.forget(namespaces)

    def end_all(self, error: Exception) -> None:
        """End every request with ``error``, keeping what was read."""
        for job in self._jobs():
            self._abandon(job, error)

    def close(self) -> None:
        self._batch.close()

    # -- letting in --------------------------------------------------------

    def _sweep_cancelled(self) -> None:
        for job in self._jobs():
            if job.handle.cancelled:
                self._abandon(job, Cancelled("the client went away"))

    def _admit(self) -> None:
        skipped: list[Reply] = []
        while self.waiting and len(self.active) < self._parallel and not self.aside:
            reply = self.waiting.popleft()
            if self._followers.must_wait(reply, self.active) or will_be_forked(reply):
                skipped.append(reply)
                continue
            plan = self._plan(reply)
            if plan.must_wait:
                self._followers.add(reply, plan, self.active)
                skipped.append(reply)
                continue
            if not self._fits(plan):
                self.waiting.appendleft(reply)
                break
            self._start(reply, plan)
        self.waiting.extendleft(reversed(skipped))

    def _plan(self, reply: Reply) -> Plan:
        request = reply.job.request
        return self._planner.plan(reply.prompt, request.namespace, request.alignable, promises(self.active))

    def _fits(self, plan: Plan) -> bool:
        """Is there room for the whole prompt, beside what others that read will still need?"""
        needed = len(plan.prompt) - plan.kept + 1
        promised = sum(r.unread for r in self.active if r.phase is Phase.READING)
        room = self.pool.ledger.free
        if needed + promised <= room:
            return True
        return needed + promised <= room + self.pool.evictable_cells(plan.source, plan.kept)

    def _start(self, reply: Reply, plan: Plan) -> None:
        job = reply.job
        source = plan.source
        self._clock += 1
        resumed = self.pool.resume_alone(source, plan.kept) if self._config.exact else None
        if source is None:
            sequence = self.pool.open(job.request.namespace, job.request.alignable)
        else:
            source.hits += 1
            source.last_used = self._clock
            if resumed is not None:
                sequence = resumed
            elif plan.resumes:
                sequence = self._resume(source)
            elif self.pool.cuttable:
                sequence = self.pool.branch(source, plan.kept)
            else:
                sequence = self.pool.lend(source, plan.kept)
            # A path counts as text only while all of it came from text.
            sequence.alignable = source.alignable and job.request.alignable
        if job.request.explain and not job.admitted:
            vocab = self._context.model.vocab
            job.explanation = explain(plan.prompt, job.request.namespace, self.pool, self._store, vocab)
        reply.sequence = sequence
        reply.prompt = plan.prompt
        reply.known = plan.known
        reply.phase = Phase.READING
        self._add_active(reply)
        if not job.admitted:
            job.admitted = time.monotonic()
            job.prompt_tokens = len(plan.prompt)
            job.kept = plan.kept
            reply.leads = True
            if self._store is not None:
                self._store.use(job.request.namespace, plan.prompt, text=job.request.alignable)
        self.pool.make_way()
        if plan.stored > plan.kept or not sequence.settled:
            self._loading.begin(reply)
        self._set_budget(reply)
        reply.start_sampling()

    def _resume(self, resident: Sequence) -> Sequence:
        if not self.pool.cuttable and self._rememberer is not None:
            self._rememberer.finish(resident)  # once it goes on, nobody else can begin where it ends now
        return self.pool.resume(resident)

    def _add_active(self, reply: Reply) -> None:
        self.active.append(reply)
        self.active.sort(key=lambda r: (r.job.order, r.index))

    def _set_budget(self, reply: Reply) -> None:
        room = self._limit - len(reply.prompt)
        wanted = reply.job.request.max_tokens
        reply.budget = room if wanted is None else min(room, wanted)

    # -- the batch ---------------------------------------------------------

    def _fill_batch(self) -> list[_Entry]:
        batch = self._batch
        batch.clear()
        writers = [r for r in self.active if r.phase is Phase.WRITING][: batch.capacity]
        while not self.pool.make_room(len(writers), self._clock):
            self._step_aside()
            writers = [r for r in self.active if r.phase is Phase.WRITING][: batch.capacity]
        entries = []
        for reply in writers:
            assert reply.sequence is not None
            index = batch.add_one(reply.pending, len(reply.sequence), reply.sequence.id)
            entries.append(_Entry(reply, 1, index, True))
        readers = [r for r in self.active if r.phase is Phase.READING and r.recall is None]
        for reply in readers:
            self._decide_marks(reply)
        shares = divide([r.readable for r in readers], self._slice_room(beside=len(writers)))
        for reply, share in zip(readers, shares, strict=True):
            n = self._room_for(share, taken=batch.n)
            if n > 0:
                entries.append(self._read(reply, n))
        if not entries and readers:
            # Readers wait for room that only another reader could give.
            self._step_aside()
            return self._fill_batch()
        return entries

    def _room_for(self, n: int, taken: int) -> int:
        """How many of ``n`` cells can be had beside ``taken`` ones that this batch uses already."""
        self.pool.make_room(n + taken, self._clock)
        return min(n, self.pool.free - taken)

    def _slice_room(self, beside: int) -> int:
        """How many prompt tokens this turn may read beside ``beside`` replies that are being written."""
        room = self._batch.room
        return min(room, self._pace.beside(beside)) if beside else room

    def _read(self, reply: Reply, n: int) -> _Entry:
        sequence = reply.sequence
        assert sequence is not None
        if not reply.job.first_slice:
            reply.job.first_slice = time.monotonic()
        start = len(sequence)
        complete = start + n == len(reply.prompt)
        index = self._batch.add(reply.prompt[start : start + n], start, sequence.id, logits_last=complete)
        return _Entry(reply, n, index, complete)

    def _account(self, entries: list[_Entry], seconds: float) -> None:
        ledger = self.pool.ledger
        read = 0
        for entry in entries:
            reply, sequence = entry.reply, entry.reply.sequence
            assert sequence is not None
            start = len(sequence)
            if reply.phase is Phase.WRITING:
                sequence.append_one(reply.pending, ledger.take_one(reply.pending, start))
            else:
                tokens = reply.prompt[start : start + entry.n]
                sequence.append(tokens, ledger.take(tokens, start))
                reply.job.evaluated += entry.n
                read += entry.n
        self._pace.observe(read, seconds)

    # -- checkpoints -------------------------------------------------------

    def _decide_marks(self, reply: Reply) -> None:
        """A prompt is about to be read: where are checkpoints to be taken?"""
        assert reply.sequence is not None
        if reply.marks is None:
            need_none = self.pool.cuttable or self._rememberer is None
            start = len(reply.sequence)
            reply.set_marks([] if need_none else self._marker.marks(reply.prompt, start, reply.known))
        while reply.marks and reply.marks[0] <= len(reply.sequence):
            reply.marks.pop(0)  # it was loaded over it

    def _take_checkpoints(self, entries: list[_Entry]) -> None:
        for entry in entries:
            reply, sequence = entry.reply, entry.reply.sequence
            if reply.marks and sequence is not None and reply.marks[0] == len(sequence):
                assert self._rememberer is not None
                self._rememberer.checkpoint(sequence)
                reply.marks.pop(0)

    # -- after the batch ---------------------------------------------------

    def _after_logits(self, entry: _Entry) -> None:
        reply = entry.reply
        if reply.phase is Phase.READING:
            siblings = self._fork(reply)
            for one in [reply, *siblings]:
                one.phase = Phase.WRITING
                self._sample(one, entry.index)
        else:
            self._sample(reply, entry.index)

    def _fork(self, reply: Reply) -> list[Reply]:
        """Give the request's other replies the prompt that was just read, as many as may run."""
        forked: list[Reply] = []
        if not reply.forkable:
            return forked
        for sibling in reply.job.replies:
            if sibling.phase is not Phase.WAITING or len(self.active) >= self._parallel:
                continue
            assert reply.sequence is not None
            if not self.pool.make_room_for_window(len(reply.sequence), self._clock):
                break
            self.waiting.remove(sibling)
            self._followers.remove(sibling)
            sibling.sequence = self.pool.branch(reply.sequence, len(reply.sequence))
            sibling.prompt = reply.prompt
            self._set_budget(sibling)
            sibling.start_sampling()
            self._add_active(sibling)
            forked.append(sibling)
        return forked

    def _sample(self, reply: Reply, index: int) -> None:
        if reply.budget <= 0:
            reply.finish_unsampled()
        elif reply.sample(self._context, index):
            return
        self._leave(reply)
        if not reply.job.open_replies:
            self._close(reply.job, None)

    def _leave(self, reply: Reply) -> None:
        """A running reply is over; what it read stays for others."""
        self.active.remove(reply)
        assert reply.sequence is not None
        self._loading.cancel(reply)
        self.pool.retire(reply.sequence, self._clock)
        reply.sequence = None

    def _abandon(self, job: Job, error: Exception) -> None:
        for reply in job.open_replies:
            if reply.phase in (Phase.READING, Phase.WRITING):
                self._leave(reply)
            elif reply.phase is Phase.ASIDE:
                self.aside.remove(reply)
            else:
                self.waiting.remove(reply)
                self._followers.remove(reply)
            reply.end()
        self._close(job, error)

    def _close(self, job: Job, error: Exception | None) -> None:
        del self._open[job.order]
        self.totals.add(job, error)
        job.close(error)

    def _jobs(self) -> list[Job]:
        """Every unfinished request, oldest first."""
        return list(self._open.values())

    # -- stepping aside ----------------------------------------------------

    def _step_aside(self) -> None:
        """Move the youngest running reply's state to RAM, so that the others can go on."""
        assert len(self.active) > 1, "one reply alone does not fit: the limit is larger than the context"
        reply = self.active.pop()
        self._loading.cancel(reply)
        assert reply.sequence is not None
        logger.info(
            "no room for %d replies: one of %d tokens waits in RAM",
            len(self.active) + 1,
            len(reply.sequence),
        )
        set_aside(reply, self._context, self.pool)
        self.aside.append(reply)
        self.aside.sort(key=lambda r: (r.job.order, r.index))
        self.totals.set_aside += 1

    def _bring_back(self) -> None:
        while self.aside and len(self.active) < self._parallel:
            reply = self.aside[0]
            assert reply.aside_tokens is not None
            unread = max(0, len(reply.prompt) - len(reply.aside_tokens))
            more = unread + min(_RESUME_MARGIN, max(1, reply.budget - reply.sampled))
            if self.active and not self._has_room(len(reply.aside_tokens) + more):
                return
            self.pool.make_room(len(reply.aside_tokens) + 1, self._clock)
            self.aside.pop(0)
            bring_back(reply, self._context, self.pool)
            self._add_active(reply)
            if reply.phase is Phase.READING:
                self._loading.begin(reply)  # it was set aside while it loaded, or its state was lost

    def _has_room(self, n: int) -> bool:
        promised = sum(r.unread for r in self.active if r.phase is Phase.READING)
        return n + promised <= self.pool.ledger.free + self.pool.evictable_cells()
