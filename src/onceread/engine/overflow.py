"""A reply that has filled the context: how much of the oldest turns to drop, so that it can go on."""

from __future__ import annotations

import logging

from onceread.engine.reply import Reply
from onceread.engine.request import Shorter

logger = logging.getLogger(__name__)

_LEFT = 0.75  # of the context is left full, so that turns need not be dropped again at once
_LEAST = 64  # tokens that the reply must be able to go on for


def fewer_turns(reply: Reply, limit: int) -> Shorter | None:
    """The reply's prompt without its oldest turns. None if it can't be made short enough."""
    shorter = reply.job.request.shorter
    assert reply.sequence is not None
    if shorter is None:
        return None
    written = len(reply.sequence) - reply.begun + 1
    for room in (int(limit * _LEFT) - written, limit - written - _LEAST):
        try:
            found = shorter(room) if room > 0 else None
        except Exception:
            logger.exception("a conversation could not be shortened; its reply ends here")
            return None
        if found is not None and len(found.prompt) <= room:
            logger.info("a reply goes on without %d older messages", len(found.dropped))
            return found
    return None
