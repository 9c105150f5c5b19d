"""The turns of the loop: who is let in, what goes into the next batch, who must step aside.

Runs on the engine's thread alone. One turn is one llama_decode: a token for each reply that is being
written, and as much of the prompts being read as the slice allows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from onceread.cache.store import Store
from onceread.engine.alignment import Aligner
from onceread.engine.aside import Aside
from onceread.engine.batching import Batcher, Entry
from onceread.engine.config import EngineConfig, EngineStats
from onceread.engine.cursors import Cursors
from onceread.engine.errors import Cancelled
from onceread.engine.explain import explain
from onceread.engine.following import Followers, promises, will_be_forked
from onceread.engine.hooks import HookRaised
from onceread.engine.loading import Loading
from onceread.engine.marks import Marker
from onceread.engine.moving import Mover
from onceread.engine.overflow import fewer_turns
from onceread.engine.planner import Plan, Planner
from onceread.engine.pool import SequencePool
from onceread.engine.recall import Recaller
from onceread.engine.remember import Rememberer
from onceread.engine.reply import Job, Phase, Reply
from onceread.engine.request import Request
from onceread.engine.sequence import Sequence
from onceread.engine.sessions import Sessions
from onceread.engine.totals import Totals
from onceread.engine.turns import Turns
from onceread.native.context import Context

_CALM = 0.02  # seconds of exports at a time while nothing runs, so that a new request waits no longer


class Scheduler:
    """Owns the queue, the running replies and the pool."""

    def __init__(
        self,
        context: Context,
        config: EngineConfig,
        limit: int,
        store: Store | None = None,
        turns: Turns | None = None,
    ) -> None:
        vocab = context.model.vocab
        self._context = context
        self._config = config
        self._limit = limit
        self._store = store
        self.pool = SequencePool(context)
        self._planner = Planner(self.pool, Aligner(vocab.pieces, vocab.control_mask), store, limit)
        mover = Mover(context, self.pool, store, config.io_timeout) if not config.exact else None
        recaller = Recaller(context, self.pool, store, config.io_timeout) if store is not None else None
        self._loading = Loading(recaller, mover)
        self._rememberer: Rememberer | None = None
        needs_marks = store is not None and not self.pool.cuttable
        self._sessions = Sessions(store) if store is not None else None
        if store is not None:
            self._rememberer = Rememberer(context, self.pool, store)
            self.pool.before_eviction = self._rememberer.finish
        marker = Marker(vocab.eog_tokens) if needs_marks else None
        self._batcher = Batcher(context, self.pool, config, marker, turns or Turns())
        self.waiting: deque[Reply] = deque()
        self.active: list[Reply] = []  # reading or writing, oldest first
        self._aside = Aside(context, self.pool)
        self._cursors = Cursors(limit, vocab.size)
        self._followers = Followers()
        self._parallel = min(config.parallel, self.pool.most_running)
        self._open: dict[int, Job] = {}  # by age; whatever fails where, nobody may be left without an answer
        self._clock = 0
        self.totals = Totals()

    @property
    def idle(self) -> bool:
        running = len(self.active) > len(self._cursors.paused)
        return not (self.waiting or running or self._aside.replies or self.behind or self._cursors.asked)

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
            running=sum(1 for reply in list(self.active) if reply.phase is not Phase.PAUSED),
            waiting=sum(1 for job in open_jobs if not job.admitted),
            set_aside=len(self._aside.replies),
        )

    def turn(self) -> bool:
        """One batch, and everything that must happen around it. False if there was nothing to do but wait."""
        self._sweep_cancelled()
        self._go_on()
        if self.waiting or self._aside.replies:
            self._park()
        self._bring_back()
        self._shorten()
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
        self._aside.replies.clear()
        self._cursors.waiting.clear()
        self._followers.clear()
        self.pool.reset()

    def forget(self, namespaces: Collection[str] | None) -> None:
        """Drop the finished sequences of these namespaces, or all."""
        self.pool.forget(namespaces)
        if self._sessions is not None:
            self._sessions.forget(namespaces)

    def end_all(self, error: Exception) -> None:
        """End every request with ``error``, keeping what was read."""
        for job in self._jobs():
            self._abandon(job, error)

    def close(self) -> None:
        self._loading.close()
        self._batcher.close()

    # -- letting in --------------------------------------------------------

    def _sweep_cancelled(self) -> None:
        for job in self._jobs():
            if job.handle.cancelled:
                self._abandon(job, Cancelled("the client went away"))

    def _admit(self) -> None:
        skipped: list[Reply] = []
        while self.waiting and len(self.active) < self._parallel and not self._aside.replies:
            reply = self.waiting.popleft()
            if self._followers.must_wait(reply, self.active) or will_be_forked(reply):
                skipped.append(reply)
                continue
            plan = self._plan(reply)
            if plan.must_wait:
                self._followers.add(reply, plan, self.active)
                skipped.append(reply)
                continue
            if not self._fits(plan, reply.job.request):
                self.waiting.appendleft(reply)
                break
            self._start(reply, plan)
        self.waiting.extendleft(reversed(skipped))

    def _plan(self, reply: Reply) -> Plan:
        request = reply.job.request
        return self._planner.plan(
            reply.prompt,
            request.namespace,
            promises(self.active),
            alignable=request.alignable and not reply.begun and request.logits_from is None,
            most=reply.last if request.logits_from is not None else None,
        )

    def _fits(self, plan: Plan, request: Request) -> bool:
        """Is there room for the whole prompt, beside what others that read will still need?"""
        needed = len(plan.prompt) - plan.kept + (not request.cursor)  # which samples nothing to be evaluated
        return self._has_room(needed, plan.source, plan.kept)

    def _has_room(self, n: int, keep: Sequence | None = None, keep_length: int = 0) -> bool:
        """Could another reply have ``n`` cells, beside what those that read will still need?

        ``keep_length`` tokens of the resident ``keep`` are not evicted for it.
        """
        promised = sum(r.unread for r in self.active if r.phase is Phase.READING)
        missing = n + promised - self.pool.ledger.free
        return missing <= 0 or missing <= self.pool.evictable_cells(keep, keep_length)

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
            if self._sessions is not None:
                self._sessions.use(job.request, plan.prompt)
        self._loading.begin_moving(reply, max(plan.kept, plan.stored))  # before what it takes may leave
        self.pool.make_way()
        if plan.stored > plan.kept or not sequence.settled:
            self._loading.begin(reply)
        if not reply.begun:
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
        request = reply.job.request
        wanted = request.max_tokens
        if request.shorter is not None:
            reply.budget = self._limit if wanted is None else wanted
        else:
            room = self._limit - len(reply.prompt)
            reply.budget = room if wanted is None else min(room, wanted)

    # -- the batch ---------------------------------------------------------

    def _fill_batch(self) -> list[Entry]:
        while (entries := self._batcher.fill(self.active, self._clock)) is None:
            if not self._park():
                self._step_aside()
        return entries

    def _compute(self, entries: list[Entry]) -> None:
        self._batcher.compute(entries)
        self.totals.decode_calls += 1
        self._take_checkpoints(entries)
        for entry in entries:
            if entry.reply.rows_from is not None and entry.reply.phase is Phase.READING:
                self._hand_out_logits(entry)
            if entry.samples and entry.reply.phase is not Phase.DONE:  # another reply of its request ended it
                self._after_logits(entry)

    def _hand_out_logits(self, entry: Entry) -> None:
        sequence = entry.reply.sequence
        assert sequence is not None
        entry.reply.hand_out(self._context, len(sequence) - entry.n, entry.index, entry.n)

    def _take_checkpoints(self, entries: list[Entry]) -> None:
        for entry in entries:
            reply, sequence = entry.reply, entry.reply.sequence
            if reply.marks and sequence is not None and reply.marks[0] == len(sequence):
                assert self._rememberer is not None
                self._rememberer.checkpoint(sequence)
                reply.marks.pop(0)

    # -- after the batch ---------------------------------------------------

    def _after_logits(self, entry: Entry) -> None:
        reply = entry.reply
        if reply.job.request.cursor:
            self._cursors.pause(reply)
        elif reply.phase is Phase.READING:
            writers = [reply, *self._fork(reply)]
            for one in writers:  # before any is sampled: what a hook raises ends all of them
                one.phase = Phase.WRITING
            for one in writers:
                if one.phase is not Phase.DONE:
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
        try:
            if reply.budget <= 0:
                reply.finish_unsampled()
            elif reply.sample(self._context, index):
                return
        except HookRaised as raised:
            self._abandon(reply.job, raised.error)
            return
        self._finished(reply)

    def _finished(self, reply: Reply) -> None:
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
            self._cursors.remove(reply)
            if reply.phase in (Phase.READING, Phase.WRITING, Phase.PAUSED):
                self._leave(reply)
            elif reply.phase is Phase.PARKED:
                pass
            elif reply.phase is Phase.ASIDE:
                self._aside.replies.remove(reply)
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

    # -- cursors -----------------------------------------------------------

    def _go_on(self) -> None:
        for reply, error in self._cursors.go_on():
            if error is not None:
                self._abandon(reply.job, error)
            elif reply.sequence is None:
                self.waiting.append(reply)

    def _park(self) -> bool:
        """Let cursors that wait for their clients make way. False if there are none in the context."""
        paused = self._cursors.paused
        for reply in paused:
            self._leave(reply)
            reply.park()
        return bool(paused)

    # -- past the limit ----------------------------------------------------

    def _shorten(self) -> None:
        """Replies that have reached the limit and may lose their oldest turns are planned anew without those."""
        for reply in [r for r in self.active if r.phase is Phase.WRITING]:
            assert reply.sequence is not None
            if len(reply.sequence) < self._limit:
                continue
            shorter = fewer_turns(reply, self._limit)
            if shorter is None:
                reply.finish_at_limit()
                self._finished(reply)
                continue
            old = reply.sequence
            self.active.remove(reply)
            reply.drop_turns(shorter)
            self.pool.retire(old, self._clock)  # what comes after takes from it what it can
            self.waiting.appendleft(reply)

    # -- stepping aside ----------------------------------------------------

    def _step_aside(self) -> None:
        """Move the youngest running reply's state to RAM, so that the others can go on."""
        assert len(self.active) > 1, "one reply alone does not fit: the limit is larger than the context"
        reply = self.active.pop()
        self._loading.cancel(reply)
        self._aside.put(reply)
        self.totals.set_aside += 1

    def _bring_back(self) -> None:
        while self._aside.replies and len(self.active) < self._parallel:
            if self.active and not self._has_room(self._aside.needed):
                return
            reply = self._aside.take(self._clock)
            self._add_active(reply)
            if reply.phase is Phase.READING:
                self._loading.begin(reply)  # it was set aside while it loaded, or its state was lost
