"""The replies that wait for chunks from the store, and whose turn it is to get one."""

from __future__ import annotations

from onceread.engine.recall import Recaller
from onceread.engine.reply import Phase, Reply


class Loading:
    """Begins, runs and breaks off what replies load. Without a store (no ``recaller``) nothing ever does."""

    def __init__(self, recaller: Recaller | None) -> None:
        self._recaller = recaller

    def begin(self, reply: Reply) -> None:
        """Load what the store has of the reply's prompt beyond its sequence."""
        if self._recaller is not None and reply.sequence is not None:
            job = reply.job
            reply.recall = self._recaller.begin(reply.prompt, reply.sequence, (job.kept, dict(job.loaded)))
            if reply.leads and not len(reply.sequence):
                job.kept = 0  # what was shared could not be gone on from

    def cancel(self, reply: Reply) -> None:
        if self._recaller is not None and reply.recall is not None:
            self._recaller.cancel(reply.recall)
            reply.recall = None

    @staticmethod
    def _count(reply: Reply) -> None:
        assert reply.recall is not None
        reply.job.kept, reply.job.loaded = reply.recall.counts()

    def turn(self, active: list[Reply], clock: int) -> bool:
        """Load what is there, but beside running streams one chunk only. False if nothing was."""
        progress = False
        streams = any(reply.phase is Phase.WRITING for reply in active)
        for reply in [r for r in active if r.recall is not None]:
            assert self._recaller is not None
            while reply.recall is not None:
                loaded = self._recaller.step(reply.recall, clock)
                if reply.leads:
                    self._count(reply)
                if reply.recall.over:
                    reply.recall = None
                    progress = True
                if not loaded:
                    break
                progress = True
                if streams:
                    return True
        return progress
