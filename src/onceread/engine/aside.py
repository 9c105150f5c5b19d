"""Setting a reply aside when there is no room for all: its state waits in RAM and comes back as it was."""

from __future__ import annotations

import logging

from onceread.engine.pool import SequencePool
from onceread.engine.reply import Phase, Reply
from onceread.native import checkpoints
from onceread.native.context import Context
from onceread.native.errors import SequenceWrong, StateImportFailed

logger = logging.getLogger(__name__)

# A reply comes back when it could go on for this many tokens, so that two do not swap at every step.
_MARGIN = 64


class Aside:
    """The replies that wait in RAM until there is room, oldest first."""

    def __init__(self, context: Context, pool: SequencePool) -> None:
        self.replies: list[Reply] = []
        self._context = context
        self._pool = pool

    def put(self, reply: Reply) -> None:
        """Move a running reply's state out of the context."""
        assert reply.sequence is not None
        logger.info("no room for another reply: one of %d tokens waits in RAM", len(reply.sequence))
        _export(reply, self._context, self._pool)
        self.replies.append(reply)
        self.replies.sort(key=lambda r: (r.job.order, r.index))

    @property
    def needed(self) -> int:
        """Cells in which the oldest one could go on."""
        reply = self.replies[0]
        assert reply.aside_tokens is not None
        held = len(reply.aside_tokens)
        unread = max(0, len(reply.prompt) - held)
        return held + unread + min(_MARGIN, max(1, reply.budget - reply.sampled))

    def take(self, clock: int) -> Reply:
        """Move the oldest one back in."""
        reply = self.replies[0]
        assert reply.aside_tokens is not None
        self._pool.make_room(len(reply.aside_tokens) + 1, clock)
        self.replies.pop(0)
        _import(reply, self._context, self._pool)
        return reply


def _export(reply: Reply, context: Context, pool: SequencePool) -> None:
    sequence = reply.sequence
    assert sequence is not None
    # What is half loaded is loaded again: it can't be gone on from.
    kept = len(sequence) if sequence.settled else 0
    reply.aside = context.export_sequence(sequence.id, kept) if kept else b""
    reply.aside_tokens = sequence.tokens[:kept].copy()
    reply.aside_phase = reply.phase
    reply.aside_alignable = sequence.alignable
    reply.aside_exact_until = sequence.exact_until
    reply.phase = Phase.ASIDE
    reply.sequence = None
    pool.discard(sequence)


def _import(reply: Reply, context: Context, pool: SequencePool) -> None:
    """There must be room. What can't be restored is to be read again."""
    tokens, blob = reply.aside_tokens, reply.aside
    assert tokens is not None
    assert blob is not None
    sequence = pool.open(reply.job.request.namespace, reply.aside_alignable)
    reply.sequence = sequence
    reply.phase = reply.aside_phase
    reply.aside = reply.aside_tokens = None
    if not len(tokens):
        return
    try:
        context.import_sequence(sequence.id, blob, len(tokens))
        if not pool.cuttable:
            checkpoints.verify(context, sequence.id, len(tokens))
    except (StateImportFailed, SequenceWrong) as error:
        # Never wrong before never twice: read it again.
        logger.error("a reply set aside did not come back from RAM (%s); it is read again", error)
        context.drop(sequence.id)
        reply.read_again(tokens)
        return
    sequence.append(tokens, pool.ledger.take(tokens, 0))
    sequence.marks = list(reply.marks or [])
    sequence.exact_until = reply.aside_exact_until
