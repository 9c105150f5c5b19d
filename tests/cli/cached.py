"""A cache directory with some paths in it, made without a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from onceread.cache.contract import Record, Use
from onceread.cache.disk import DiskTier
from onceread.cache.names import namespace_id, prefix_name, root_name

BUDGET = 2**28
SYSTEM = "You are a lighthouse keeper. " * 8


def _chunk(root: bytes, namespace: bytes, text: bytes, start: int) -> Record:
    """The part of ``text`` from ``start`` on, a token for each byte."""
    tokens = np.frombuffer(text, dtype=np.uint8).astype("<i4")
    return Record(
        root=root,
        namespace=namespace,
        name=prefix_name(root, tokens.tobytes()),
        parent=prefix_name(root, tokens[:start].tobytes()) if start else root,
        start=start,
        tokens=tokens[start:].tobytes(),
        spelled=text[start:],
        lengths=np.ones(len(text) - start, dtype="<u2").tobytes(),
    )


Fill = Callable[..., None]


def fill(directory: Path, *questions: str, model: str = "one f16/f16", namespace: str = "n") -> None:
    """SYSTEM, and behind it each of the questions, the last ones used longest ago: hours, days."""
    fingerprint = prefix_name(bytes(32), model.encode())
    tier = DiskTier(directory, BUDGET, fingerprint, model)
    owner = namespace_id(namespace)
    root = root_name(fingerprint, owner)
    head = SYSTEM.encode()
    now = time.time()
    tier.write(_chunk(root, owner, head, 0), bytes(100_000), Use(9, now, 1.0))
    for i, question in enumerate(questions):
        use = Use(1 + i, now - 3600 * 3 * 24**i - 5, 1.0)
        tier.write(_chunk(root, owner, head + question.encode(), len(head)), bytes(50_000), use)
    tier.close()
