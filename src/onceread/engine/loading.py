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
            reply.recall = self._recaller.begin(reply.prompt, reply.sequence)

    def cancel(self, reply: Reply) -> None:
        if self._recaller is not None and reply.recall is not None:
            self._recaller.cancel(reply.recall)
            reply.recall = None

    def turn(self, active: list[Reply], clock: int) -> bool:
        """Load what is there, but beside running streams one chunk only. False if nothing was."""
        progress = False
        streams = any(reply.phase is Phase.WRITING for reply in active)
        for reply in [r for r in active if r.recall is not None]:
            assert self._recaller is not None
            while reply.recall is not None:
                loaded = self._recaller.step(reply.recall, clock)
                if reply.recall.over:
                    reply.recall = None
                    progress = True
                if loaded is None:
                    break
                progress = True
                if reply.leads:
                    reply.job.loaded[loaded.source] += loaded.n
                if streams:
                    return True
        return progress
