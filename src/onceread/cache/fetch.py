"""The load of one chunk, on its way from a tier to the engine."""

from __future__ import annotations

from typing import Literal

from onceread.cache.chunk import Chunk

Source = Literal["memory", "disk"]


class Fetch:
    """Made by the store and polled by the engine. Close it when done with it, whatever came of it."""

    def __init__(self, chunk: Chunk, source: Source) -> None:
        self.chunk = chunk
        self.source: Source = source
        self.blob: bytes | None = None  # set before ``done``
        self.done = False  # with no blob: a miss
        self.wanted = True

    def finish(self, blob: bytes | None) -> None:
        self.blob = blob
        self.done = True
