"""What of a prompt is already in the context, and what to do about the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onceread.engine.alignment import Aligner, Join
from onceread.engine.pool import SequencePool
from onceread.engine.sequence import Sequence, Tokens, common_prefix


@dataclass(frozen=True, slots=True)
class Plan:
    """Share ``kept`` tokens of ``source`` and evaluate the rest of ``prompt``.

    ``prompt`` is what will be in the context: aligned, with at least one token more than ``kept``, since
    logits need a decode. ``source`` is None if nothing fits. While ``source`` is shorter than ``kept`` it is
    just being read by another request: wait for it.
    """

    prompt: Tokens
    source: Sequence | None = None
    kept: int = 0

    @property
    def must_wait(self) -> bool:
        return self.source is not None and len(self.source) < self.kept


class Planner:
    """Finds the longest prefix that any sequence of the request's namespace holds or is about to hold."""

    def __init__(self, pool: SequencePool, aligner: Aligner, limit: int) -> None:
        self._pool = pool
        self._aligner = aligner
        self._limit = limit

    def plan(self, prompt: Tokens, namespace: str, alignable: bool, promised: dict[int, Tokens]) -> Plan:
        """``promised``: for sequences that are being read, by id, the whole prompt they will hold."""
        best = Plan(prompt)
        best_rank = (0, 0, 0)
        pool = self._pool
        for source in pool.residents + pool.running:
            if source.namespace != namespace:
                continue
            tokens = promised.get(source.id, source.tokens)
            join = self._join(tokens, prompt, alignable and source.alignable)
            if join.covered == 0:
                continue
            candidate = self._candidate(source, tokens, join, prompt)
            if candidate is None:
                continue
            # The most of the prompt first; then what is there already; then what need not be branched.
            resumable = source in pool.residents and candidate.kept == len(source)
            rank = (join.covered, int(not candidate.must_wait), int(resumable))
            if rank > best_rank:
                best, best_rank = candidate, rank
        return best

    def _join(self, tokens: Tokens, prompt: Tokens, align: bool) -> Join:
        exact = common_prefix(tokens, prompt)
        if align and exact < min(len(tokens), len(prompt)):
            join = self._aligner.join(tokens, prompt)
            # Sampled tokens may be more than the tokenizer would make: never let that outgrow the limit.
            if join.kept + len(prompt) - join.covered < self._limit:
                return join
        return Join(exact, exact)

    def _candidate(self, source: Sequence, tokens: Tokens, join: Join, prompt: Tokens) -> Plan | None:
        rest = prompt[join.covered :]
        whole = np.concatenate([tokens[: join.kept], rest])
        kept = min(join.kept, len(whole) - 1)
        if kept == 0:
            return None
        if not self._pool.cuttable and not (kept == len(source) and source in self._pool.residents):
            return None
        return Plan(whole, source, kept)
