"""Where a prompt left the nearest known path, for people who wonder why it was read again."""

from __future__ import annotations

import numpy as np

from onceread.cache.store import Store
from onceread.engine.pool import SequencePool
from onceread.engine.request import Explanation
from onceread.engine.sequence import Tokens, common_prefix
from onceread.native.vocabulary import Vocabulary

_SHOWN = 24  # tokens


def explain(
    prompt: Tokens, namespace: str, pool: SequencePool, store: Store | None, vocab: Vocabulary
) -> Explanation | None:
    """None if nothing is known in the namespace."""
    ways: list[tuple[int, Tokens]] = []
    for sequence in pool.residents + pool.running:
        if sequence.namespace == namespace and len(sequence):
            n = common_prefix(sequence.tokens, prompt)
            ways.append((n, sequence.tokens[n : n + _SHOWN].copy()))
    if store is not None:
        n, rest = store.goes_on(namespace, prompt, _SHOWN)
        if n or len(rest):
            ways.append((n, rest))
    if not ways:
        return None
    position, known = max(ways, key=lambda way: (way[0], len(way[1])))
    return Explanation(
        position=position,
        shared=_text(prompt[max(0, position - _SHOWN) : position], vocab),
        known=_text(known, vocab),
        prompt=_text(prompt[position : position + _SHOWN], vocab),
    )


def _text(tokens: Tokens, vocab: Vocabulary) -> str:
    pieces = [
        vocab.text(t).encode() if vocab.is_control(t) else vocab.piece(t) for t in np.asarray(tokens).tolist()
    ]
    return b"".join(pieces).decode(errors="replace")
