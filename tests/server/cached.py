"""The fake engine with a real store behind it: whatever it reads, it remembers, to the last token."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.fakes import CONTROL, FakeEngine, Script, echo

from onceread.cache.cuts import Cutter
from onceread.cache.disk import DiskTier
from onceread.cache.names import spell
from onceread.cache.store import Store
from onceread.engine.request import RequestHandle

FINGERPRINT = b"f" * 32
TOKEN_BYTES = 1000  # of state
_PIECES = [bytes([i]) for i in range(256)] + [name.encode() for name in CONTROL]
_OPAQUE = np.arange(len(_PIECES)) >= 256


def make_store(memory: int = 2**26, directory: Path | None = None) -> Store:
    return Store(
        fingerprint=FINGERPRINT,
        label="fake f16/f16",
        spelled=spell(_PIECES, _OPAQUE),
        cutter=Cutter([CONTROL["<|im_end|>"]]),
        cut=lambda blob, n: (blob[: n * TOKEN_BYTES], blob[n * TOKEN_BYTES :]),
        memory_bytes=memory,
        disk=DiskTier(directory, 2**28, FINGERPRINT, "fake f16/f16") if directory else None,
    )


def remembering(script: Script) -> Script:
    """``script``, after the prompt was given to the store."""

    def run(engine: FakeEngine, handle: RequestHandle) -> None:
        request = handle.request
        tokens = np.asarray(request.prompt, dtype=np.int32)
        while (gap := engine.store.gap(request.namespace, tokens, final=True)) is not None:
            blob = bytes(TOKEN_BYTES * (gap[1] - gap[0]))
            if not engine.store.put(request.namespace, tokens, *gap, blob, text=request.alignable):
                break
        script(engine, handle)

    return run


class CachedEngine(FakeEngine):
    """Answers as FakeEngine does."""

    def __init__(self, store: Store | None = None, **store_options: Any) -> None:
        super().__init__(remembering(echo))
        self.store = store or make_store(**store_options)

    def clear(self, namespaces: Collection[str] | None) -> int:
        freed: int = self.store.clear(namespaces)
        return freed

    def wait_remembered(self, namespace: str, tokens: Collection[int], timeout: float) -> bool:
        stored: bool = self.store.wait_stored(namespace, np.asarray(tokens, dtype=np.int32), timeout)
        return stored
