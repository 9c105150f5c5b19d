"""What a plan and a listing cost against a million stored tokens: `python bench/store_lookup.py`. Needs no model."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from onceread.cache.cuts import Cutter
from onceread.cache.store import Store

TOKENS = 1_000_000
CHAT = 2_000
LONG = 32_000
END = 2


def main() -> None:
    rng = np.random.default_rng(7)
    spelled = [b" %d" % i for i in range(50_000)]
    store = Store(
        fingerprint=bytes(32),
        label="bench",
        spelled=spelled,
        cutter=Cutter([END]),
        cut=lambda blob, n: (blob[:n], blob[n:]),
        memory_bytes=1 << 40,
    )

    def path(n: int) -> np.ndarray:
        tokens = rng.integers(10, len(spelled), n).astype(np.int32)
        tokens[rng.random(n) < 1 / 120] = END
        return tokens

    def remember(tokens: np.ndarray) -> None:
        while (gap := store.gap("default", tokens, final=True)) is not None:
            store.put("default", tokens, *gap, bytes(gap[1] - gap[0]))

    tracemalloc.start()
    began = time.perf_counter()
    system = path(1_500)
    long = path(LONG)
    remember(long)
    for _ in range((TOKENS - LONG) // CHAT):
        remember(np.concatenate([system, path(CHAT)]))
    stored = store.stats().memory
    took = time.perf_counter() - began
    per_token = tracemalloc.get_traced_memory()[0] / stored.tokens
    tracemalloc.stop()
    print(f"{stored.tokens:,} tokens in {stored.chunks:,} chunks, {per_token:.0f} bytes of Python a token")
    print(f"(stored in {took:.1f} s, while memory was traced)")

    edited = long.copy()
    edited[LONG - 100] = 11
    text = store.spell(edited)
    show("match a 32,000-token prompt", lambda: store.match("default", edited))
    show("spell it", lambda: store.spell(edited))
    show("match its text", lambda: store.match_text("default", text))
    show("match a chat among 480 that share a system prompt", lambda: store.match("default", system))
    show("list 50 paths", lambda: store.paths(None, 50))


def show(what: str, work: Callable[[], object]) -> None:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    print(f"{what}: median {statistics.median(times):.2f} ms, at worst {max(times):.2f}")


if __name__ == "__main__":
    main()
