"""What a process has been told about a shared directory, so that it hears of others' changes and not of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onceread.cache.contract import Key
from onceread.cache.index import REMOVALS, Index, Row


@dataclass(frozen=True, slots=True)
class Changes:
    """What other processes did."""

    added: list[Row]
    removed: list[Key]
    pins: bool  # pins were added or removed

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.pins)


class Watch:
    """Not thread-safe: to be used under the lock that changes are made under."""

    def __init__(self, fingerprint: bytes | None) -> None:
        self._fingerprint = fingerprint
        self._known: set[Key] = set()
        self._untold: list[Key] = []
        self._generation = ""
        self._seq = -1
        self._pins = -1

    def begin(self, index: Index) -> list[Row]:
        """All rows. ``compare`` tells what happened since."""
        rows = index.rows(self._fingerprint)
        self._known = {row.key for row in rows}
        self._untold.clear()
        self.mark(index)
        return rows

    def mark(self, index: Index) -> None:
        """What has happened so far need not be told."""
        state = index.state()
        self._generation, self._seq, self._pins = state.generation, state.seq, state.pins

    def add(self, key: Key) -> None:
        self._known.add(key)

    def discard(self, keys: Iterable[Key]) -> None:
        self._known.difference_update(keys)

    def tell_later(self, keys: Iterable[Key]) -> None:
        """These went for a write that failed, so nobody was told."""
        self._untold.extend(keys)

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    def knows_pins(self, index: Index) -> bool:
        state = index.state()
        return (state.generation, state.pins) == (self._generation, self._pins)

    def set_pins(self, count: int) -> None:
        self._pins = count

    def compare(self, index: Index) -> Changes:
        state = index.state()
        if state.generation == self._generation and state.seq - self._seq <= REMOVALS:
            added = [row for row in index.rows(self._fingerprint, self._seq) if row.key not in self._known]
            mine = [key for key in index.removed(self._seq) if key in self._known]
            removed = [key for key in dict.fromkeys(mine) if index.row(key) is None]
        else:
            rows = index.rows(self._fingerprint)
            added = [row for row in rows if row.key not in self._known]
            removed = list(self._known - {row.key for row in rows})
        removed += [key for key in self._untold if key not in self._known and index.row(key) is None]
        self._untold.clear()
        changes = Changes(added, removed, not self.knows_pins(index))
        self.discard(removed)
        self._known.update(row.key for row in added)
        self.mark(index)
        return changes
