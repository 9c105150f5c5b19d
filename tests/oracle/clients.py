"""A client that does what clients do: continue, repeat, edit, branch, start anew."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Client:
    """Makes prompts of ``words`` (token ids) from what it remembers of the past."""

    rng: random.Random
    words: list[int]
    past: list[tuple[int, ...]]

    def prompt(self) -> tuple[int, ...]:
        kind = self.rng.choice(["new", "again", "go on", "go on", "edit", "branch", "prefix"])
        if kind == "new" or not self.past:
            return self._words(40, 90)
        path = self.rng.choice(self.past)
        if kind == "again":
            return path
        if kind == "go on":
            return path + self._words(5, 30)
        cut = self.rng.randrange(1, len(path))
        if kind == "edit":
            return path[:cut] + self._words(1, 3) + path[cut + 1 :]
        if kind == "branch":
            return path[:cut] + self._words(5, 30)
        return path[:cut]

    def _words(self, low: int, high: int) -> tuple[int, ...]:
        n = self.rng.randint(low, high)
        start = self.rng.randrange(len(self.words) - n)
        return tuple(self.words[start : start + n])
