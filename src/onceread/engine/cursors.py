"""Requests that read on when they are told to: what waits for its client, and makes way meanwhile."""

from __future__ import annotations

from onceread.engine.errors import ContextLengthExceeded, EngineError, InvalidRequest
from onceread.engine.reply import Phase, Reply
from onceread.engine.request import Request


def check(request: Request) -> None:
    """Raise InvalidRequest where a request asks for logits, or to read on, together with what excludes that."""
    if request.cursor and (request.max_tokens != 0 or request.logits_from is None):
        raise InvalidRequest("a cursor samples nothing and hands out logits: max_tokens=0, logits_from=…")
    if request.logits_from is None:
        return
    if request.n != 1:
        raise InvalidRequest("logits are handed out for one reply only: n=1", "n")
    if request.reuse_moved or request.shorter is not None:
        raise InvalidRequest("logits are not handed out where tokens move to other positions", "reuse_moved")
    if not 0 <= request.logits_from < len(request.prompt):
        raise InvalidRequest(f"logits_from must be in [0, {len(request.prompt)})", "logits_from")


class Cursors:
    """Which replies wait to be told what to read next. On the engine's thread, but for ``asked``.

    Such a reply is *paused*: it has its sequence, and is among the active ones. Where it would be in the way of
    others it is *parked*: the sequence becomes a resident, and the reply is planned anew when it goes on.
    """

    def __init__(self, limit: int, n_vocab: int) -> None:
        self._limit = limit
        self._n_vocab = n_vocab
        self.waiting: list[Reply] = []

    @property
    def asked(self) -> bool:
        """Is one of them to go on, or cancelled?"""
        return any(reply.job.handle.asks for reply in self.waiting)

    @property
    def paused(self) -> list[Reply]:
        """Those in the context."""
        return [reply for reply in self.waiting if reply.phase is Phase.PAUSED]

    def pause(self, reply: Reply) -> None:
        """Its prompt is read."""
        reply.phase = Phase.PAUSED
        self.waiting.append(reply)

    def remove(self, reply: Reply) -> None:
        if reply in self.waiting:
            self.waiting.remove(reply)

    def go_on(self) -> list[tuple[Reply, EngineError | None]]:
        """Those that were told to, with more of a prompt; or with why they can't, which ends them."""
        going: list[tuple[Reply, EngineError | None]] = []
        for reply in list(self.waiting):
            more = reply.job.handle.take_more()
            if more is None:
                continue
            tokens, every = more
            error = self._refusal(reply, tokens)
            if error is None:
                self.waiting.remove(reply)
                reply.extend(tokens, every=every)
            going.append((reply, error))
        return going

    def _refusal(self, reply: Reply, tokens: tuple[int, ...]) -> EngineError | None:
        if not tokens:
            return InvalidRequest("there is nothing to read on with")
        if min(tokens) < 0 or max(tokens) >= self._n_vocab:
            return InvalidRequest(f"a token id is outside [0, {self._n_vocab})")
        n = len(reply.prompt) + len(tokens)
        return ContextLengthExceeded(n, self._limit) if n > self._limit else None
