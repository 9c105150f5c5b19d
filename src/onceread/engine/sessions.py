"""The paths of a session, kept together: while one of them is used, the others count as used too.

An agent's conversation is one path, its sub-agents and side requests are others, with other beginnings. While a
sub-agent works for an hour nothing of the main conversation is asked for, and by itself it would be the first to go.
A client that names its session says that it will come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from onceread.cache.store import Store
from onceread.engine.request import Request
from onceread.engine.sequence import Tokens

MOST_PATHS = 8  # of a session, those that were used last
_MOST_TOKENS = 4 * 1024 * 1024  # of all sessions


class Sessions:
    """What each session read last, by namespace and name. On the engine's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: OrderedDict[tuple[str, str], list[Tokens]] = OrderedDict()
        self._tokens = 0

    def use(self, request: Request, prompt: Tokens) -> None:
        """``request`` uses the path of ``prompt``, and its session's others with it."""
        namespace, session = request.namespace, request.session
        self._store.use(namespace, prompt, text=request.alignable)
        if session is None:
            return
        paths = self._sessions.setdefault((namespace, session), [])
        self._sessions.move_to_end((namespace, session))
        # What it goes on from is no path of its own any more.
        others = [path for path in paths if not _continues(prompt, path)][-(MOST_PATHS - 1) :]
        for path in others:
            self._store.use(namespace, path, text=False)
        self._tokens += len(prompt) - sum(map(len, paths)) + sum(map(len, others))
        paths[:] = [*others, prompt]
        while self._tokens > _MOST_TOKENS and len(self._sessions) > 1:
            self._tokens -= sum(map(len, self._sessions.popitem(last=False)[1]))

    def forget(self, namespaces: Collection[str] | None) -> None:
        """Those of these namespaces, or all."""
        for key in [key for key in self._sessions if namespaces is None or key[0] in namespaces]:
            self._tokens -= sum(map(len, self._sessions.pop(key)))


def _continues(path: Tokens, old: Tokens) -> bool:
    return len(path) >= len(old) and bool((path[: len(old)] == old).all())
