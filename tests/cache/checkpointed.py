"""Stores with checkpoints for tests: a checkpoint says which tokens it is the state after."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np

from onceread.cache.chunk import Chunk
from onceread.cache.cuts import Tokens
from onceread.cache.store import Store
from onceread.cache.tree import Part
from tests.cache.stores import PLENTY, make_store, remember, state


def checkpointed_store(memory: int = PLENTY, directory: Path | None = None, disk: int = PLENTY) -> Store:
    return make_store(memory, directory, disk, checkpointed=True)


def taken(path: Tokens, size: int = 3000) -> bytes:
    """What an engine would take at the end of ``path``."""
    return hashlib.sha256(path.tobytes()).digest() + bytes(size)


def take(store: Store, path: Tokens, *positions: int, namespace: str = "n", size: int = 3000) -> bool:
    """Store ``path`` with checkpoints at these positions, as an engine does. False if something was refused."""
    kept = True
    lower = 0
    for position in positions:
        prefix = path[:position]
        kept &= remember(
            store, prefix, namespace, cuts=positions
        )  # what is behind it would be the first to go
        blob = taken(prefix, size)
        if store.room_for_checkpoint(namespace, prefix, len(blob)):
            kept &= store.put_checkpoint(namespace, prefix, blob, reach=position - lower)
        lower = position
    return kept & remember(store, path, namespace, cuts=positions)


def load(store: Store, part: Part) -> bytes | None:
    fetch = store.fetch(part)
    until = time.monotonic() + 10
    while not fetch.done and time.monotonic() < until:
        time.sleep(0.001)
    blob = fetch.blob
    store.close_fetch(fetch, part.end - part.start)
    return blob


def restore(store: Store, path: Tokens, namespace: str = "n") -> int:
    """Go on from the deepest checkpoint that can be had, and hold every byte against what was put in. Its position."""
    while (found := store.checkpoint(namespace, path)) is not None:
        at = 0
        lost = False
        for part in found.parts:
            chunk = part.chunk
            assert (part.start, part.end) == (at, at + chunk.n) == (chunk.start, chunk.end), (
                "not whole, or a hole"
            )
            assert np.array_equal(chunk.array, path[at : part.end])
            blob = load(store, part)
            lost |= blob is None
            assert blob in (None, state(path, at, part.end)), "the state of something else"
            at = part.end
        assert at == found.length <= len(path)
        assert found.state == Part(found.state.chunk, at, at)
        blob = load(store, found.state)
        if blob is not None and not lost:
            assert blob.startswith(taken(path[:at], 0)), "the checkpoint of something else"
            return at
    return 0


def checkpoints_of(store: Store) -> list[Chunk]:
    return [chunk for chunk in store._tree if chunk.is_checkpoint]
