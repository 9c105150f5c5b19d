"""What of a prompt is already known, in the context and in the store, and what to do about the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onceread.cache.store import Store
from onceread.engine.alignment import Aligner, Join
from onceread.engine.marks import NEAR
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence, Tokens, common_prefix


class Promise(NamedTuple):
    """What a sequence that is being read will hold, and where a decode is going to begin next."""

    prompt: Tokens
    position: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Share ``kept`` tokens of ``source``, load up to ``stored`` from the store, evaluate the rest of ``prompt``.

    ``prompt`` is what will be in the context: aligned, with at least one token more than is known, since
    logits need a decode. ``source`` is None if nothing in the context fits. While ``source`` is shorter than
    ``kept`` it is just being read by another request: wait for it. ``resumes`` says that ``source`` is a resident
    that can be gone on from as it is.
    """

    prompt: Tokens
    source: Sequence | None = None
    kept: int = 0
    stored: int = 0  # tokens from position 0 on that the store has, and can be gone on from
    known: int = 0  # tokens that were read by anyone, also where they can't be gone on from
    resumes: bool = False
    mark: bool = False  # a checkpoint is to be taken at ``kept``, of a sequence that is being read

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

    def plan(
        self,
        prompt: Tokens,
        namespace: str,
        promised: dict[int, Promise],
        *,
        alignable: bool = True,
        most: int | None = None,
    ) -> Plan:
        """``promised``: for sequences that are being read, by id, what they will hold. ``most``: of the prompt so
        many tokens may come from elsewhere, all but the last if it is None.

        What was taken from other positions is in no plan: see moving.py.
        """
        whole = prompt
        if alignable:
            whole = self._aligned(prompt, namespace, promised)
        if self._pool.cuttable:
            return self._plan_plain(whole, namespace, promised, len(whole) - 1 if most is None else most)
        return self._plan_checkpointed(whole, namespace, promised, len(whole) - 1 if most is None else most)

    def _plan_plain(self, whole: Tokens, namespace: str, promised: dict[int, Promise], last: int) -> Plan:
        stored = 0
        if self._store is not None:
            stored = self._store.match(namespace, whole[:last]).length
        best, best_rank = Plan(whole, stored=stored), (stored, 1, 0)
        for source in self._sources(namespace):
            kept = min(common_prefix(_held(source, promised), whole), last)
            if not kept:
                continue
            resumable = source in self._pool.residents and kept == len(source)
            plan = Plan(whole, source, kept, stored, resumes=resumable)
            # The most of the prompt first; then what is there already; then what lies in the context; then
            # what need not be branched.
            known = kept if plan.must_wait else max(kept, stored)
            rank = (known, int(not plan.must_wait), 2 * kept + int(resumable))
            if rank > best_rank:
                best, best_rank = plan, rank
        return best

    def _plan_checkpointed(
        self, whole: Tokens, namespace: str, promised: dict[int, Promise], last: int
    ) -> Plan:
        """A resident as it is, or a checkpoint of the store with what attention the context has before it."""
        stored = known = 0
        if self._store is not None:
            found = self._store.checkpoint(namespace, whole[:last])
            stored = found.length if found is not None else 0
            known = self._store.match(namespace, whole[:last]).length
        sources = [s for s in self._sources(namespace) if s.settled or s.id in promised]
        common = {s: min(common_prefix(_held(s, promised), whole), last) for s in sources}
        known = max([known, *common.values()])
        resumable = [s for s in self._pool.residents if s in common and common[s] == len(s) > 0]
        best = max(resumable, key=len, default=None)
        if best is not None and len(best) >= stored:
            plan = Plan(whole, best, len(best), known=known, resumes=True)
        else:
            lent = {s: min(common[s], len(s), stored) for s in sources if s.settled}
            lender = max(lent, key=lambda s: lent[s], default=None)
            kept = lent[lender] if lender is not None else 0
            lender = lender if kept else None
            plan = Plan(whole, lender, kept, stored, known)
        # Whoever is reading the same will leave a checkpoint where the two part, if he is not behind it yet.
        readers = [s for s in sources if s.id in promised and common[s] > promised[s.id].position]
        reader = max(readers, key=lambda s: common[s], default=None) if self._store is not None else None
        if reader is not None and common[reader] > max(plan.kept, plan.stored) + NEAR:
            return Plan(whole, reader, common[reader], stored, known, mark=True)
        return plan

    def _aligned(self, prompt: Tokens, namespace: str, promised: dict[int, Promise]) -> Tokens:
        """The prompt's text with the tokens of the path that covers most of it."""
        best, best_rank = prompt, (0, 0)
        for source in self._sources(namespace):
            tokens = _held(source, promised)
            join = self._join(tokens, prompt, align=source.alignable)
            if join is None or not self._serves(source, join):
                continue
            if (rank := (join.covered, 1)) > best_rank:
                best, best_rank = np.concatenate([tokens[: join.kept], prompt[join.covered :]]), rank
        if self._store is not None and best_rank[0] < len(prompt):
            exact = self._store.match(namespace, prompt).length
            if exact > best_rank[0]:
                best, best_rank = prompt, (exact, 0)
            if exact < len(prompt):
                path = self._store.match_spelling(namespace, prompt)
                join = self._join(path, prompt, align=True)
                if join is not None and join.covered > best_rank[0]:
                    best = np.concatenate([path[: join.kept], prompt[join.covered :]])
        return best

    def _serves(self, source: Sequence, join: Join) -> bool:
        """Can anything be gone on from, if the prompt begins as this sequence does?"""
        return self._pool.cuttable or self._store is not None or join.kept == len(source)

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


def _held(source: Sequence, promised: dict[int, Promise]) -> Tokens:
    promise = promised.get(source.id)
    return source.exact if promise is None else promise.prompt
