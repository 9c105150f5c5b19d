"""What of a prompt is already known, in the context and in the store, and what to do about the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onceread.cache.store import Store
from onceread.engine.alignment import Aligner, Join
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence, Tokens, common_prefix


@dataclass(frozen=True, slots=True)
class Plan:
    """Share ``kept`` tokens of ``source``, load up to ``stored`` from the store, evaluate the rest of ``prompt``.

    ``prompt`` is what will be in the context: aligned, with at least one token more than is known, since
    logits need a decode. ``source`` is None if nothing in the context fits. While ``source`` is shorter than
    ``kept`` it is just being read by another request: wait for it.
    """

    prompt: Tokens
    source: Sequence | None = None
    kept: int = 0
    stored: int = 0  # tokens from position 0 on that the store has

    @property
    def must_wait(self) -> bool:
        return self.source is not None and len(self.source) < self.kept


class Planner:
    """Finds the longest prefix that the store or any sequence of the request's namespace holds or is about to."""

    def __init__(self, pool: SequencePool, aligner: Aligner, store: Store | None, limit: int) -> None:
        self._pool = pool
        self._aligner = aligner
        self._store = store
        self._limit = limit

    def plan(self, prompt: Tokens, namespace: str, alignable: bool, promised: dict[int, Tokens]) -> Plan:
        """``promised``: for sequences that are being read, by id, the whole prompt they will hold."""
        whole = prompt
        if alignable:
            whole = self._aligned(prompt, namespace, promised)
        stored = 0
        if self._store is not None:
            stored = self._store.match(namespace, whole[:-1]).length
        best, best_rank = Plan(whole, stored=stored), (stored, 1, 0)
        for source in self._sources(namespace):
            tokens = promised.get(source.id, source.tokens)
            kept = min(common_prefix(tokens, whole), len(whole) - 1)
            resumable = source in self._pool.residents and kept == len(source)
            if not kept or not (resumable or self._pool.cuttable):
                continue
            plan = Plan(whole, source, kept, stored)
            # The most of the prompt first; then what is there already; then what lies in the context; then
            # what need not be branched.
            known = kept if plan.must_wait else max(kept, stored)
            rank = (known, int(not plan.must_wait), 2 * kept + int(resumable))
            if rank > best_rank:
                best, best_rank = plan, rank
        return best

    def _aligned(self, prompt: Tokens, namespace: str, promised: dict[int, Tokens]) -> Tokens:
        """The prompt's text with the tokens of the path that covers most of it."""
        best, best_rank = prompt, (0, 0)
        for source in self._sources(namespace):
            tokens = promised.get(source.id, source.tokens)
            join = self._join(tokens, prompt, align=source.alignable)
            if join is None or (not self._pool.cuttable and join.kept != len(source)):
                continue
            if (rank := (join.covered, 1)) > best_rank:
                best, best_rank = np.concatenate([tokens[: join.kept], prompt[join.covered :]]), rank
        if self._store is not None and best_rank[0] < len(prompt):
            exact = self._store.match(namespace, prompt).length
            if exact > best_rank[0]:
                best, best_rank = prompt, (exact, 0)
            if exact < len(prompt):
                path = self._store.match_text(namespace, self._store.spell(prompt))
                join = self._join(path, prompt, align=True)
                if join is not None and join.covered > best_rank[0]:
                    best = np.concatenate([path[: join.kept], prompt[join.covered :]])
        return best

    def _sources(self, namespace: str) -> list[Sequence]:
        return [s for s in self._pool.residents + self._pool.running if s.namespace == namespace]

    def _join(self, path: Tokens, prompt: Tokens, *, align: bool) -> Join | None:
        exact = common_prefix(path, prompt)
        join = Join(exact, exact)
        if align and exact < min(len(path), len(prompt)):
            aligned = self._aligner.join(path, prompt)
            # Sampled tokens may be more than the tokenizer would make: never let that outgrow the limit.
            if aligned.kept + len(prompt) - aligned.covered < self._limit:
                join = aligned
        return join if join.covered else None
