"""The replies that wait for state from the store, or from other positions, and whose turn it is to get some."""

from __future__ import annotations

from onceread.engine.moving import Mover
from onceread.engine.recall import Recaller
from onceread.engine.reply import Phase, Reply


class Loading:
    """Begins, runs and breaks off what replies load. Without a store (no ``recaller``) nothing is recalled."""

    def __init__(self, recaller: Recaller | None, mover: Mover | None) -> None:
        self._recaller = recaller
        self._mover = mover

    def begin(self, reply: Reply) -> None:
        """Load what the store has of the reply's prompt beyond its sequence."""
        if self._recaller is not None and reply.sequence is not None:
            job = reply.job
            counted = (job.kept, dict(job.loaded))
            reply.recall = self._recaller.begin(reply.prompt, reply.sequence, counted, reply.last)
            if reply.leads and not len(reply.sequence):
                job.kept = 0  # what was shared could not be gone on from

    def begin_moving(self, reply: Reply, known: int) -> None:
        """Take what is known of the prompt elsewhere, behind its first ``known`` tokens."""
        if self._mover is not None and reply.takes_moved:
            request = reply.job.request
            reply.moving = self._mover.begin(reply.prompt, request.namespace, known, request.least_moved)

    def cancel(self, reply: Reply) -> None:
        if self._recaller is not None and reply.recall is not None:
            self._recaller.cancel(reply.recall)
            reply.recall = None
        if self._mover is not None and reply.moving is not None:
            self._mover.skip(reply.moving)
            reply.moving = None

    def turn(self, active: list[Reply], clock: int) -> bool:
        """Load what is there, but beside running streams one chunk only. False if nothing was."""
        progress = False
        streams = any(reply.phase is Phase.WRITING for reply in active)
        for reply in active:
            while self._step(reply, clock):
                progress = True
                if streams:
                    return True
        return progress

    def _step(self, reply: Reply, clock: int) -> bool:
        if reply.recall is not None:
            return self._recall(reply, clock)
        if reply.moving is not None:
            return self._move(reply, clock)
        return False

    def _recall(self, reply: Reply, clock: int) -> bool:
        assert self._recaller is not None
        assert reply.recall is not None
        loaded = self._recaller.step(reply.recall, clock)
        if reply.leads:
            reply.job.kept, reply.job.loaded = reply.recall.counts()
        if reply.recall.over:
            reply.recall = None
            return True
        return loaded

    def _move(self, reply: Reply, clock: int) -> bool:
        assert self._mover is not None
        assert reply.moving is not None
        assert reply.sequence is not None
        self._mover.skip(reply.moving, len(reply.sequence))
        if reply.moving.next != len(reply.sequence):
            return False
        taken = self._mover.step(reply.moving, reply.sequence, clock)
        if taken and reply.leads:
            reply.job.moved += taken
        elif taken and reply.job.dropped:
            reply.job.moved_later += taken
        return taken is not None

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
