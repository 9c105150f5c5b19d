"""A store of a million tokens, to look things up in."""

from __future__ import annotations

import numpy as np

from onceread.cache.cuts import Cutter, Tokens
from onceread.cache.store import Store

STORED = 1_000_000  # tokens
LONG = 32_000
CHAT = 2_000
END = 2
SPELLED = [b" %d" % i for i in range(50_000)]


class Million:
    """A store of a million tokens: a long prompt, and hundreds of chats over one system prompt."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)
        self.store = Store(
            fingerprint=bytes(32),
            label="bench",
            spelled=SPELLED,
            cutter=Cutter([END]),
            cut=lambda blob, n: (blob[:n], blob[n:]),
            memory_bytes=1 << 40,
        )
        self.system = self.path(1_500)
        self.long = self.path(LONG)
        self.remember(self.long)
        for _ in range((STORED - LONG) // CHAT):
            self.last = np.concatenate([self.system, self.path(CHAT)])
            self.remember(self.last)
        self.edited = self.long.copy()
        self.edited[LONG - 100] = 11

    def path(self, n: int) -> Tokens:
        tokens = self._rng.integers(10, len(SPELLED), n).astype(np.int32)
        tokens[self._rng.random(n) < 1 / 120] = END
        return tokens

    def remember(self, tokens: Tokens) -> None:
        while (gap := self.store.gap("default", tokens, final=True)) is not None:
            self.store.put("default", tokens, *gap, bytes(gap[1] - gap[0]))
