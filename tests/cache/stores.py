"""Stores for tests: a state of four bytes a token, which says what token it is the state of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onceread.cache.contract import TOKEN
from onceread.cache.cuts import Cutter, Tokens
from onceread.cache.disk import DiskTier
from onceread.cache.store import Store

VOCAB = 1000
END = 2  # the token that ends a message
FINGERPRINT = bytes(32)
SPELLED = [f" w{i}".encode() for i in range(VOCAB)]
PLENTY = 1 << 30


def cut(blob: bytes, n: int) -> tuple[bytes, bytes]:
    assert 0 < n < len(blob) // TOKEN
    return blob[: n * TOKEN], blob[n * TOKEN :]


def tokens(*ids: int) -> Tokens:
    return np.asarray(ids, dtype=np.int32)


def state(path: Tokens, start: int, end: int) -> bytes:
    """What an engine would export. Every token's part depends on all tokens before it, as a real one does."""
    return (np.cumsum(path.astype(np.int64)) % 2**31).astype("<i4")[start:end].tobytes()


def make_store(
    memory: int = PLENTY,
    directory: Path | None = None,
    disk: int = PLENTY,
    fingerprint: bytes = FINGERPRINT,
    *,
    checkpointed: bool = False,
) -> Store:
    return Store(
        fingerprint=fingerprint,
        label="test model",
        spelled=SPELLED,
        cutter=Cutter([END]),
        cut=cut,
        memory_bytes=memory,
        disk=DiskTier(directory, disk, fingerprint, "test model") if directory else None,
        checkpointed=checkpointed,
    )


def remember(
    store: Store, path: Tokens, namespace: str = "n", *, final: bool = True, cuts: Sequence[int] = ()
) -> bool:
    """Give a store all it lacks of ``path``. False if it refused something."""
    while (gap := store.gap(namespace, path, final=final, cuts=cuts)) is not None:
        if not store.put(namespace, path, *gap, state(path, *gap)):
            return False
    return True


def recall(store: Store, path: Tokens, namespace: str = "n", timeout: float = 10.0) -> int:
    """Load what a store has of ``path`` and hold every byte against what was put in. How much it was."""
    import time

    length = 0
    for part in store.match(namespace, path).parts:
        fetch = store.fetch(part)
        until = time.monotonic() + timeout
        while not fetch.done and time.monotonic() < until:
            time.sleep(0.001)
        blob = fetch.blob
        n = part.end - length if blob is not None else 0
        store.close_fetch(fetch, n)
        if blob is None:
            return length
        whole = np.concatenate([path[: part.chunk.start], part.chunk.array])
        assert blob == state(whole, part.chunk.start, part.chunk.end), "the state of something else"
        length = part.end
    return length
