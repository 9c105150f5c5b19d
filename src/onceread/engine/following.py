"""Requests that wait for what another one is just reading, so that nothing is read twice."""

from __future__ import annotations

from onceread.engine.planner import Plan, Promise
from onceread.engine.reply import Phase, Reply
from onceread.engine.sequence import Sequence


class Followers:
    """Who waits for whom, and for how much of it."""

    def __init__(self) -> None:
        self._waits: dict[Reply, tuple[Sequence, int]] = {}

    def add(self, reply: Reply, plan: Plan, active: list[Reply]) -> None:
        """Let a reply wait until the source of its plan has read as much as it will share."""
        assert plan.source is not None
        self._waits[reply] = (plan.source, plan.kept)
        for reader in active:
            if plan.mark and reader.sequence is plan.source:
                reader.want_mark(plan.kept)

    def must_wait(self, reply: Reply, active: list[Reply]) -> bool:
        """Does it still wait? Once it does not, it is to be planned anew."""
        if reply not in self._waits:
            return False
        sequence, needed = self._waits[reply]
        reading = any(r.sequence is sequence and r.phase is Phase.READING for r in active)
        if reading and len(sequence) < needed:
            return True
        del self._waits[reply]
        return False

    def remove(self, reply: Reply) -> None:
        self._waits.pop(reply, None)

    def clear(self) -> None:
        self._waits.clear()


def promises(active: list[Reply]) -> dict[int, Promise]:
    """What the sequences that are being read will hold, by their ids."""
    return {
        r.sequence.id: Promise(
            r.prompt[: r.exact_until], r.recall.goal if r.recall is not None else len(r.sequence)
        )
        for r in active
        if r.phase is Phase.READING and r.sequence is not None
    }


def will_be_forked(reply: Reply) -> bool:
    """Is another reply of the same request reading their prompt just now?"""
    return any(r.phase is Phase.READING and r.forkable for r in reply.job.replies)
