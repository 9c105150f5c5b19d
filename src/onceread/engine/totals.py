"""What happened since the start, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from onceread.engine.errors import Cancelled
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
