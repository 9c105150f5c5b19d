"""A lock for two that want it all the time: they get it in turns."""

from __future__ import annotations

import threading


class Turns:
    """Held for one llama_decode. Two at once would spin against each other for the same cores.

    An ordinary lock does not say who gets it next: a loop that releases it and takes it again at once can keep
    everyone else out. Here whoever waits has the door to the waiting room, so that the other comes after.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._now = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._now.acquire()

    def __exit__(self, *_: object) -> None:
        self._now.release()
