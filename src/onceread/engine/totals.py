"""What happened since the start, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from onceread.engine.config import EngineStats
from onceread.engine.errors import Cancelled
from onceread.engine.pool import SequencePool
from onceread.engine.reply import Job
from onceread.engine.request import CachedBySource


@dataclass(slots=True)
class Totals:
    """Changed on the engine's thread; each number may be read from any."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    evaluated: int = 0
    reevaluated: int = 0
    cached: CachedBySource = field(default_factory=CachedBySource)
    completion_tokens: int = 0
    decode_calls: int = 0
    set_aside: int = 0

    def add(self, job: Job, error: Exception | None) -> None:
        """A request is over."""
        if isinstance(error, Cancelled):
            self.cancelled += 1
        elif error is not None:
            self.failed += 1
        if job.admitted:
            usage = job.usage()
            self.prompt_tokens += usage.prompt_tokens
            self.evaluated += usage.evaluated_tokens
            self.reevaluated += job.reevaluated
            self.cached = self.cached.plus(usage.cached)
            self.completion_tokens += usage.completion_tokens

    def stats(self, pool: SequencePool, *, running: int, waiting: int, set_aside: int) -> EngineStats:
        """With how things stand now. May be called from any thread."""
        return EngineStats(
            requests_total=self.requests,
            requests_cancelled=self.cancelled,
            requests_failed=self.failed,
            prompt_tokens_total=self.prompt_tokens,
            prompt_evaluated_total=self.evaluated,
            prompt_reevaluated_total=self.reevaluated,
            cached_context_total=self.cached.context,
            cached_memory_total=self.cached.memory,
            cached_disk_total=self.cached.disk,
            cached_moved_total=self.cached.moved,
            completion_tokens_total=self.completion_tokens,
            decode_calls_total=self.decode_calls,
            set_aside_total=self.set_aside,
            evictions_total=pool.evictions,
            running=running,
            waiting=waiting,
            set_aside=set_aside,
            residents=len(pool.residents),
            cells_used=pool.ledger.used,
            cells_total=pool.ledger.size,
            sequences_used=pool.n_sequences,
            sequences_total=pool.most_sequences,
        )
