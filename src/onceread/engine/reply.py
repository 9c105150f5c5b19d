"""One reply being written, and the request it belongs to, as the engine's thread sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from onceread.cache.fetch import Source
from onceread.engine.hooks import Hooks
from onceread.engine.moving import Moving
from onceread.engine.recall import Recall
from onceread.engine.request import (
    CachedBySource,
    DoneEvent,
    Explanation,
    FinishEvent,
    FinishReason,
    LogitsEvent,
    Request,
    RequestHandle,
    Shorter,
    TextEvent,
    TokenLogprob,
    Usage,
)
from onceread.engine.sequence import EXACT, Sequence, Tokens, as_tokens
from onceread.engine.textstream import TextStream
from onceread.native.context import Context
from onceread.native.errors import GrammarInvalid
from onceread.native.grammar import GrammarDeadEnd
from onceread.native.samplers import Sampler
from onceread.native.vocabulary import Vocabulary

_FEW = 64  # tokens


class Phase(Enum):
    WAITING = auto()  # in the queue
    READING = auto()  # its prompt is being evaluated
    WRITING = auto()  # decoding
    PAUSED = auto()  # a cursor: its prompt is read, and its client has not said how it goes on
    PARKED = auto()  # the same, but others needed its place in the context
    ASIDE = auto()  # its state lies in RAM until there is room
    DONE = auto()


@dataclass(slots=True)
class Job:
    """A request on the engine's side: its replies and the numbers that happened."""

    handle: RequestHandle
    order: int  # counts requests; the lower, the older
    replies: list[Reply] = field(default_factory=list)
    prompt_tokens: int = 0
    kept: int = 0  # of them shared in the context when it began
    loaded: dict[Source, int] = field(
        default_factory=lambda: {"memory": 0, "disk": 0}
    )  # of them from the store
    moved: int = 0  # of them from other positions
    moved_later: int = 0  # beside those, when turns were dropped
    dropped: tuple[int, ...] = ()  # messages that had to go
    evaluated: int = 0  # that went through llama_decode for it, some perhaps twice
    completion_tokens: int = 0
    first_slice: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    admitted: float = 0.0
    finished: bool = False
    explanation: Explanation | None = None

    @property
    def request(self) -> Request:
        return self.handle.request

    @property
    def open_replies(self) -> list[Reply]:
        return [r for r in self.replies if r.phase is not Phase.DONE]

    @property
    def reevaluated(self) -> int:
        """Prompt tokens that went through llama_decode though they had been read for this request before."""
        return self.evaluated - min(self.evaluated, self.prompt_tokens - self.cached)

    @property
    def cached(self) -> int:
        """Prompt tokens that were not evaluated for it."""
        return self.kept + sum(self.loaded.values()) + self.moved

    def usage(self) -> Usage:
        """What the request cost so far: of a prompt that was not read to its end, only the part that was."""
        # A prompt counts once, though a reply that came too late to branch off evaluates its end again.
        evaluated = min(self.evaluated, self.prompt_tokens - self.cached)
        return Usage(
            prompt_tokens=self.cached + evaluated,
            evaluated_tokens=evaluated,
            cached=CachedBySource(
                context=self.kept, memory=self.loaded["memory"], disk=self.loaded["disk"], moved=self.moved
            ),
            completion_tokens=self.completion_tokens,
            moved_later=self.moved_later,
            queue_seconds=max(0.0, self.admitted - self.handle.created) if self.admitted else 0.0,
            prompt_seconds=max(0.0, self.first_token - self.first_slice) if self.first_token else 0.0,
            decode_seconds=max(0.0, self.last_token - self.first_token) if self.first_token else 0.0,
        )

    def close(self, error: Exception | None) -> None:
        """Send the last event. Called once."""
        assert not self.finished
        self.finished = True
        self.handle.push(DoneEvent(self.usage(), error, self.explanation, self.dropped))


class Reply:
    """The state of one reply: its sequence, its sampler, the text shown so far."""

    def __init__(self, job: Job, index: int, sampler: Sampler, vocab: Vocabulary) -> None:
        self.job = job
        self.index = index
        self.phase = Phase.WAITING
        self.sequence: Sequence | None = None
        self.prompt: Tokens = as_tokens(job.request.prompt)  # replaced by the aligned one when planned
        self.pending = -1  # sampled, not yet evaluated
        self.sampled = 0
        self.budget = 0  # tokens it may sample, set when its prompt's length is known
        self.aside: bytes | None = None  # the state of a reply set aside, and what it is the state of
        self.aside_tokens: Tokens | None = None
        self.aside_phase = Phase.READING
        self.aside_alignable = True
        self.aside_exact_until = EXACT
        self.leads = False  # it was the first of its request to begin: what it loads counts
        self.recall: Recall | None = None  # what it still loads from the store
        self.known = 0  # tokens of its prompt that were read by anyone
        self.moving: Moving | None = None  # what it takes from other positions
        self.takes_moved = job.request.reuse_moved
        self.begun = 0  # tokens of its prompt before the first that was sampled
        self.marks: list[int] | None = None  # where checkpoints are still to be taken; None = not yet decided
        self._wanted_marks: set[int] = set()
        self._keeps = True  # its prompt is still the one that the client's marks are in
        self.forkable = True  # when its prompt is read, other replies of the request may branch from it
        self.rows_from = job.request.logits_from  # from here on its client wants the logits of its prompt
        self._hooks = Hooks.of(job.request)
        self._sampler = sampler
        self._vocab = vocab
        self._ids: list[int] = []  # sampled, not yet in any event
        self._stream = TextStream(job.request.stop)
        self._held_logprobs: list[tuple[int, TokenLogprob]] = []  # (character where it ends, entry)

    @property
    def unread(self) -> int:
        """Prompt tokens still to be evaluated."""
        assert self.sequence is not None
        return max(0, len(self.prompt) - len(self.sequence))

    @property
    def last(self) -> int:
        """What is to be evaluated begins here at the latest: logits are not kept with what was read."""
        last = len(self.prompt) - 1
        return last if self.rows_from is None else min(last, self.rows_from)

    @property
    def readable(self) -> int:
        """Of them those that the next batch may have: it must end at the next mark."""
        assert self.sequence is not None
        stop = self.marks[0] if self.marks else len(self.prompt)
        if self.moving is not None and self.moving.next is not None:
            stop = min(stop, self.moving.next)
        return max(0, stop - len(self.sequence))

    @property
    def keep_at(self) -> list[int]:
        """Where the client asked for checkpoints.

        Its positions are those of the prompt that it sent. Where the prompt was aligned to a known path, they are
        counted from the end: what was aligned is known, and what is read behind it is as it was sent.
        """
        moved = self.begun - len(self.job.request.prompt)
        return [at + moved for at in sorted(self.job.request.keep_at)] if self._keeps else []

    @property
    def exact_until(self) -> int:
        """Up to where its sequence will hold what was read at these positions, behind this text."""
        assert self.sequence is not None
        coming = self.moving.next if self.moving is not None else None
        return min(self.sequence.exact_until, EXACT if coming is None else coming)

    @property
    def waits_for_state(self) -> bool:
        """Is the next thing to happen to it that state is loaded, or moved?"""
        assert self.sequence is not None
        return self.recall is not None or (self.moving is not None and self.moving.next == len(self.sequence))

    def extend(self, tokens: tuple[int, ...], *, every: bool) -> None:
        """A cursor is to read on. ``every``: its client wants the logits of each of these tokens."""
        parked = self.phase is Phase.PARKED
        before = len(self.prompt)
        self.prompt = np.concatenate([self.prompt, as_tokens(tokens)])
        self.job.prompt_tokens += len(tokens)
        self.rows_from = before if every else len(self.prompt) - 1
        # Of a few tokens no checkpoint is needed: there will be one where the cursor ends.
        self.marks = None if parked or len(tokens) > _FEW else []
        self.phase = Phase.WAITING if parked else Phase.READING

    def park(self) -> None:
        """A paused one makes way. Its sequence is the scheduler's to keep."""
        self.phase = Phase.PARKED
        self.begun = len(self.prompt)
        self.leads = False  # what is loaded when it goes on, its client was told of already

    def hand_out(self, context: Context, start: int, index: int, n: int) -> None:
        """Of ``n`` tokens just evaluated from position ``start`` on, the last one at a batch index: their logits."""
        assert self.rows_from is not None
        wanted = range(max(0, self.rows_from - start), n)
        if wanted:
            rows = np.stack([context.logits(index - n + 1 + i) for i in wanted])
            self.job.handle.prompt_usage = self.job.usage()
            self.job.handle.push(LogitsEvent(self.index, start + wanted.start, rows))

    def drop_turns(self, shorter: Shorter) -> None:
        """There is no room for another token: go on behind a prompt without its oldest turns.

        Its sequence is the scheduler's to keep. What was sampled stays, and is part of the prompt now.
        """
        assert self.sequence is not None
        written = self.sequence.tokens[self.begun :]
        self.begun = len(shorter.prompt)
        self.prompt = np.concatenate([as_tokens(shorter.prompt), written, as_tokens([self.pending])])
        self.job.dropped = shorter.dropped
        self.sequence = None
        self.phase = Phase.WAITING
        self.forkable = self.leads = self._keeps = False
        self.takes_moved = self.job.request.shifts
        self.marks = None

    def set_marks(self, marks: Iterable[int]) -> None:
        """Take checkpoints at these positions, and where others have asked for one."""
        assert self.sequence is not None
        position = len(self.sequence)
        self.marks = sorted(mark for mark in {*marks, *self._wanted_marks} if mark > position)
        self.sequence.marks = sorted({*self.sequence.marks, *self.marks})

    def want_mark(self, position: int) -> None:
        """Another request will go on from there."""
        self._wanted_marks.add(position)
        if self.marks is not None:
            self.set_marks(self.marks)

    def read_again(self, tokens: Tokens) -> None:
        """Its state is lost: evaluate what it had, ``tokens``, and go on from there.

        A reply that was being written still has its pending token, so that nothing is sampled twice: the
        lost tokens become its prompt, with the pending one as their last.
        """
        if self.phase is Phase.WRITING:
            self.forkable = False
            self.prompt = np.append(tokens, np.int32(self.pending))
            self.leads = False
        self.phase = Phase.READING
        self.marks = None

    def start_sampling(self) -> None:
        """The prompt's length is final: show the penalties its end."""
        self.begun = len(self.prompt)
        look_back = self._sampler.look_back
        if look_back:
            self._sampler.accept_prompt(self.prompt[-look_back:].tolist())

    def sample(self, context: Context, index: int) -> bool:
        """Take the next token by the logits at a batch index and show its text. False if the reply ends here.

        Raises HookRaised: then it has not ended yet.
        """
        job = self.job
        request = job.request
        over = False
        try:
            if self._hooks is None:
                token = self._sampler.sample(context, index)
            else:
                assert self.sequence is not None
                token, over = self._hooks.sample(self._sampler, context, index, self.sequence.tokens)
        except (GrammarDeadEnd, GrammarInvalid):  # no way on, or a limit reached on the way
            self._finish("length")
            return False
        now = time.monotonic()
        if not job.first_token:
            job.first_token = now
            job.handle.prompt_usage = job.usage()
        job.last_token = now
        if over or self._vocab.is_eog(token):
            self._finish("stop")
            return False
        self.sampled += 1
        job.completion_tokens += 1
        self._ids.append(token)
        piece = self._vocab.pieces[token]
        if token in request.spelled:
            piece = self._vocab.text(token).encode()
        shown = self._stream.push(piece)
        entries: tuple[TokenLogprob, ...] = ()
        if request.logprobs is not None:
            entry = self._logprob(context, index, token, request.logprobs)
            self._held_logprobs.append((self._stream.decoded, entry))
            entries = self._due_logprobs()
        if shown.text or entries:
            job.handle.push(TextEvent(self.index, shown.text, self.sampled, entries, self._new_ids()))
        if shown.stop is not None:
            self._held_logprobs.clear()
            self._finish("stop", shown.stop)
            return False
        self.pending = token
        if self._sampler.complete:  # the end is certain: it takes no decode, and no token of the budget
            self._finish("stop")
            return False
        if self.sampled >= self.budget:
            self._finish("length")
            return False
        return True

    def _finish(self, reason: FinishReason, stop: str | None = None) -> None:
        if stop is None:
            rest = self._stream.finish()
            entries = tuple(e for _, e in self._held_logprobs)
            if rest or entries:
                event = TextEvent(self.index, rest, self.sampled, entries, self._new_ids())
                self.job.handle.push(event)
        self.job.handle.push(FinishEvent(self.index, reason, stop, self._new_ids()))
        self.end()

    def finish_at_limit(self) -> None:
        """There is no room for another token, and none can be made."""
        self._finish("length")

    def finish_unsampled(self) -> None:
        """A request for no tokens at all: its prompt is read, and that was it."""
        self.job.first_token = self.job.last_token = time.monotonic()
        self._finish("length")

    def end(self) -> None:
        """No more tokens, for whatever reason. Frees the sampler; the sequence is the scheduler's to keep."""
        self.phase = Phase.DONE
        self.aside = None
        self._sampler.close()

    def _new_ids(self) -> tuple[int, ...]:
        ids = tuple(self._ids)
        self._ids.clear()
        return ids

    def _due_logprobs(self) -> tuple[TokenLogprob, ...]:
        due = [e for end, e in self._held_logprobs if end <= self._stream.shown]
        del self._held_logprobs[: len(due)]
        return tuple(due)

    def _logprob(self, context: Context, index: int, token: int, n_top: int) -> TokenLogprob:
        logits = context.logits(index).astype(np.float64)
        peak = float(logits.max())
        log_sum = peak + math.log(float(np.exp(logits - peak).sum()))
        pieces = self._vocab.pieces
        top: list[tuple[int, bytes, float]] = []
        if n_top:
            n = min(n_top, len(logits))
            best = np.argpartition(logits, -n)[-n:]
            best = best[np.argsort(-logits[best], kind="stable")]
            top = [(int(t), pieces[t], float(logits[t] - log_sum)) for t in best]
        return TokenLogprob(token, pieces[token], float(logits[token] - log_sum), tuple(top))
