"""The index of the store on disk: SQL, and nothing but SQL. Files are others' business.

Every change happens in a transaction that began IMMEDIATE, so changes come one after another, also those of several
processes. ``seq`` numbers them in that order: who remembers the last one he saw can ask what came after it.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Iterable, Sequence

from onceread.cache.contract import CHECKPOINTS, Key, Record, Use
from onceread.cache.errors import NoRoom
from onceread.cache.schema import (
    APPLICATION,
    COLUMNS,
    SCHEMA,
    VERSION,
    KnownModel,
    Reservation,
    Row,
    StoreState,
    Totals,
    Victim,
    row_of,
)
from onceread.cache.sizes import binary

__all__ = ["Index", "KnownModel", "Reservation", "Row", "StoreState", "Totals", "Victim"]

REMOVALS = 10_000  # so many numbers back is known what was removed; who asks later compares everything

# The priority of what is worth nothing by itself, while something continues it: so that one need not look at all of
# that whenever the first leaf is wanted. Once nothing does it is 0, and it goes before all others.
_HELD = 1e300

# A chunk can go if nothing continues the prefix that it ends, or another chunk ends the same prefix.
_LEAVES = """
SELECT id, fingerprint, name, start, file_bytes, priority FROM chunks AS c
WHERE pinned = 0 AND (
    EXISTS (SELECT 1 FROM chunks AS other WHERE other.name = c.name AND other.id <> c.id)
    OR (NOT EXISTS (SELECT 1 FROM chunks AS child WHERE child.parent = c.name AND child.fingerprint = c.fingerprint)
        AND NOT EXISTS (SELECT 1 FROM writing WHERE writing.parent = c.name))
)
ORDER BY priority, last_used, start DESC, name
"""

_CHECKPOINTS = """
SELECT id, fingerprint, name, start, file_bytes, priority FROM chunks
WHERE n = 0 AND pinned = 0
ORDER BY priority, last_used, start DESC, name LIMIT 1
"""

_CHAIN = """
WITH RECURSIVE chain (name) AS (
    SELECT ? UNION SELECT chunks.parent FROM chunks JOIN chain ON chunks.name = chain.name
)
SELECT name FROM chain
"""


class Index:
    """The statements, over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._do = connection.execute

    # -- the store as a whole

    def create(self) -> None:
        for statement in SCHEMA.split(";\n"):
            self._do(statement)
        self._do("INSERT INTO store VALUES (1, ?, NULL, 0, 0, 0, 0)", (secrets.token_hex(8),))
        self._do(f"PRAGMA application_id = {APPLICATION}")
        self._do(f"PRAGMA user_version = {VERSION}")

    def complaint(self) -> str | None:
        """What is wrong with it, or None. Raises sqlite3.DatabaseError if it is beyond description."""
        (application,) = self._do("PRAGMA application_id").fetchone()
        (version,) = self._do("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            return "is empty or not ours"
        if version != VERSION:
            return f"has version {version}, not {VERSION}"
        (verdict,) = self._do("PRAGMA quick_check(1)").fetchone()
        return None if verdict == "ok" else "is damaged"

    def state(self) -> StoreState:
        row = self._do("SELECT generation, budget, clock, checkpoint_clock, seq, pins FROM store").fetchone()
        return StoreState(*row)

    def set_budget(self, budget: int) -> None:
        self._do("UPDATE store SET budget = ?", (budget,))

    def use_model(self, fingerprint: bytes, label: str, now: float) -> None:
        self._do(
            "INSERT INTO models VALUES (?, ?, ?) ON CONFLICT (fingerprint) DO UPDATE"
            " SET label = excluded.label, last_used = max(last_used, excluded.last_used)",
            (fingerprint, label, now),
        )

    def add_model(self, fingerprint: bytes, label: str, now: float) -> None:
        """As its files say. What is known already is newer."""
        self._do("INSERT OR IGNORE INTO models VALUES (?, ?, ?)", (fingerprint, label, now))

    def models(self) -> list[KnownModel]:
        return [KnownModel(*row) for row in self._do("SELECT * FROM models ORDER BY last_used DESC")]

    def forget_unused_models(self, but: bytes | None) -> None:
        self._do(
            "DELETE FROM models WHERE fingerprint IS NOT ? AND fingerprint NOT IN (SELECT fingerprint FROM chunks)",
            (but,),
        )

    def total(self) -> int:
        """Bytes that are taken or reserved."""
        (chunks,) = self._do("SELECT coalesce(sum(file_bytes), 0) FROM chunks").fetchone()
        (writing,) = self._do("SELECT coalesce(sum(bytes), 0) FROM writing").fetchone()
        return int(chunks + writing)

    def checkpoint_total(self) -> int:
        """The same, of checkpoints."""
        (chunks,) = self._do("SELECT coalesce(sum(file_bytes), 0) FROM chunks WHERE n = 0").fetchone()
        (writing,) = self._do("SELECT coalesce(sum(bytes), 0) FROM writing WHERE checkpoint = 1").fetchone()
        return int(chunks + writing)

    def totals(self, fingerprint: bytes | None, evictions: int) -> Totals:
        where, values = _of(fingerprint)
        row = self._do(
            "SELECT coalesce(sum(file_bytes), 0), coalesce(sum(n > 0), 0), coalesce(sum(n), 0),"
            " coalesce(sum(file_bytes * pinned), 0), coalesce(sum(n = 0), 0),"
            f" coalesce(sum(file_bytes * (n = 0)), 0) FROM chunks WHERE {where}",
            values,
        ).fetchone()
        size, chunks, tokens, pinned, checkpoints, checkpoint_bytes = row
        budget = self.state().budget or 0
        return Totals(size, chunks, tokens, pinned, budget, evictions, checkpoints, checkpoint_bytes)

    # -- reading

    def rows(self, fingerprint: bytes | None = None, after: int = -1) -> list[Row]:
        where, values = _of(fingerprint)
        found = self._do(
            f"SELECT {COLUMNS} FROM chunks WHERE {where} AND seq > ? ORDER BY seq", (*values, after)
        )
        return [row_of(row) for row in found]

    def on_root(self, root: bytes) -> list[tuple[int, Row]]:
        found = self._do(f"SELECT id, {COLUMNS} FROM chunks WHERE root = ? ORDER BY seq", (root,))
        return [(row[0], row_of(row[1:])) for row in found]

    def keys(self, fingerprint: bytes | None = None) -> list[tuple[Key, int]]:
        """With what their files take."""
        where, values = _of(fingerprint)
        found = self._do(f"SELECT name, start, file_bytes FROM chunks WHERE {where}", values)
        return [(Key(name, start), size) for name, start, size in found]

    def removed(self, after: int) -> list[Key]:
        found = self._do("SELECT name, start FROM removals WHERE seq > ? ORDER BY seq", (after,))
        return [Key(*row) for row in found]

    def row(self, key: Key) -> Row | None:
        row = self._do(f"SELECT {COLUMNS} FROM chunks WHERE name = ? AND start = ?", key).fetchone()
        return row_of(row) if row is not None else None

    # -- changing

    def insert(self, fingerprint: bytes, record: Record, use: Use, file_bytes: int, *, pinned: bool) -> None:
        value = _finite(use.value)
        seq = self._next_seq()
        self._do(
            f"INSERT INTO chunks ({COLUMNS}, n, priority) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                *(record.root, record.namespace, record.name, record.parent, record.start),
                *(record.tokens, record.spelled, record.lengths, record.reach),
                *(fingerprint, use.hits, _finite(use.last_used), value),
                *(file_bytes, int(pinned), seq, record.n, self._priority(record, value)),
            ),
        )
        self._do("UPDATE chunks SET priority = ? WHERE name = ? AND value = 0", (_HELD, record.parent))

    def _priority(self, record: Record, value: float) -> float:
        if value > 0:
            state = self.state()
            return value + (state.checkpoint_clock if record.is_checkpoint else state.clock)
        continued = self._do(
            "SELECT EXISTS (SELECT 1 FROM chunks WHERE parent = ?)", (record.name,)
        ).fetchone()
        return _HELD if continued[0] else 0.0

    def forget(self, key: Key) -> None:
        """Make place for a row of the same key. Nobody is told: the chunk does not go away."""
        self._do("DELETE FROM chunks WHERE name = ? AND start = ?", key)

    def delete(self, keys: Iterable[Key]) -> list[Victim]:
        """Those that were there."""
        gone = []
        for key in keys:
            found = self._do(
                "SELECT id, fingerprint, file_bytes FROM chunks WHERE name = ? AND start = ?", key
            ).fetchone()
            if found is not None:
                gone.append(self._delete(found[0], Victim(found[1], key, found[2])))
        return gone

    def set_size(self, key: Key, file_bytes: int) -> None:
        self._do("UPDATE chunks SET file_bytes = ? WHERE name = ? AND start = ?", (file_bytes, *key))

    def touch(self, uses: Sequence[tuple[Key, Use]]) -> None:
        """Counts only rise: another process may have seen more."""
        state = self.state()
        self.connection.executemany(
            "UPDATE chunks SET hits = max(hits, ?), last_used = max(last_used, ?), value = ?, priority ="
            " CASE WHEN ? <= 0 THEN priority WHEN n = 0 THEN ? ELSE ? END WHERE name = ? AND start = ?",
            [
                (
                    *(use.hits, _finite(use.last_used), value := _finite(use.value)),
                    *(value, state.checkpoint_clock + value, state.clock + value, *key),
                )
                for key, use in uses
            ],
        )

    def devalue(self, keys: Iterable[Key]) -> None:
        """These chunks are worth nothing by themselves, whatever was thought."""
        for key in keys:
            self._do(
                "UPDATE chunks SET value = 0, priority = CASE WHEN EXISTS"
                " (SELECT 1 FROM chunks AS child WHERE child.parent = chunks.name) THEN ? ELSE 0 END"
                " WHERE name = ? AND start = ?",
                (_HELD, *key),
            )

    def set_pinned(self, ids: Iterable[int], *, others: bool) -> None:
        """Pin these; with ``others`` let go of the others."""
        wanted = set(ids)
        now = {row[0] for row in self._do("SELECT id FROM chunks WHERE pinned = 1")}
        changes = [(1, id_) for id_ in wanted - now]
        if others:
            changes += [(0, id_) for id_ in now - wanted]
        self.connection.executemany("UPDATE chunks SET pinned = ? WHERE id = ?", changes)

    def set_pinned_key(self, key: Key) -> None:
        self._do("UPDATE chunks SET pinned = 1 WHERE name = ? AND start = ?", key)

    def count_pin_change(self) -> None:
        self._do("UPDATE store SET pins = pins + 1")

    # -- room

    def reserve(
        self, reservation: Reservation, parent: bytes, size: int, *, checkpoint: bool = False
    ) -> None:
        self._do(
            "INSERT INTO writing VALUES (?, ?, ?, ?, ?, ?, ?)",
            (reservation.id, reservation.owner, *reservation.key, parent, size, int(checkpoint)),
        )

    def unreserve(self, ids: Iterable[str]) -> None:
        self.connection.executemany("DELETE FROM writing WHERE id = ?", [(id_,) for id_ in ids])

    def reservations(self) -> list[Reservation]:
        found = self._do("SELECT id, owner, name, start FROM writing")
        return [Reservation(id_, owner, Key(name, start)) for id_, owner, name, start in found]

    def make_room(self, need: int, newcomer: Record) -> list[Victim]:
        """Delete rows until ``need`` bytes fit, cheapest leaf first, never what the newcomer continues.

        For a checkpoint there must be room among checkpoints as well. Raises NoRoom; the transaction is to be
        rolled back then.
        """
        budget = self.state().budget
        if budget is not None and need > budget:
            raise NoRoom(f"a chunk of {binary(need)} is larger than the budget of {binary(budget)}")
        victims: list[Victim] = []
        if newcomer.is_checkpoint:
            victims, missing = self.evict_checkpoints(need)
            if missing > 0:
                raise NoRoom(f"{binary(missing)} are missing for a checkpoint of {binary(need)}")
        others, missing = self.evict(need, newcomer)
        if missing > 0:
            raise NoRoom(
                f"{binary(missing)} are missing: all that could go is pinned or needed by what is written"
            )
        return victims + others

    def evict_checkpoints(self, need: int = 0) -> tuple[list[Victim], int]:
        """Make room for ``need`` bytes among checkpoints, as far as it goes: who went, and what is missing still."""
        budget = self.state().budget
        excess = self.checkpoint_total() + need - int(budget * CHECKPOINTS) if budget is not None else 0
        victims: list[Victim] = []
        while excess > 0 and (row := self._do(_CHECKPOINTS).fetchone()) is not None:
            id_, fingerprint, name, start, size, priority = row
            self._do("UPDATE store SET checkpoint_clock = max(checkpoint_clock, ?)", (priority,))
            victims.append(self._delete(id_, Victim(fingerprint, Key(name, start), size)))
            excess -= size
        return victims, max(excess, 0)

    def evict(self, need: int = 0, newcomer: Record | None = None) -> tuple[list[Victim], int]:
        """As far as it goes: who went, and the bytes that are missing still."""
        budget = self.state().budget
        excess = self.total() + need - budget if budget is not None else 0
        victims: list[Victim] = []
        kept = self._chain(newcomer) if newcomer is not None and excess > 0 else set()
        while excess > 0:
            victim = self._evict_one(kept)
            if victim is None:
                break
            victims.append(victim)
            excess -= victim.file_bytes
        return victims, max(excess, 0)

    def _chain(self, newcomer: Record) -> set[bytes]:
        """The names of all prefixes that a chunk continues."""
        return {row[0] for row in self._do(_CHAIN, (newcomer.parent,))}

    def _evict_one(self, kept: set[bytes]) -> Victim | None:
        for id_, fingerprint, name, start, size, priority in self._do(_LEAVES):
            if name not in kept:
                if priority < _HELD:
                    self._do(
                        "UPDATE store SET clock = max(clock, ?1), checkpoint_clock = max(checkpoint_clock, ?1)",
                        (priority,),
                    )
                return self._delete(id_, Victim(fingerprint, Key(name, start), size))
        return None

    def _delete(self, id_: int, victim: Victim) -> Victim:
        seq = self._next_seq()
        (parent,) = self._do("SELECT parent FROM chunks WHERE id = ?", (id_,)).fetchone()
        self._do("DELETE FROM chunks WHERE id = ?", (id_,))
        self._do("UPDATE chunks SET priority = 0 WHERE name = ? AND value = 0", (parent,))
        self._do("INSERT INTO removals VALUES (?, ?, ?)", (seq, *victim.key))
        self._do("DELETE FROM removals WHERE seq <= ?", (seq - REMOVALS,))
        return victim

    def _next_seq(self) -> int:
        self._do("UPDATE store SET seq = seq + 1")
        return self.state().seq


def _of(fingerprint: bytes | None) -> tuple[str, tuple[bytes, ...]]:
    return ("fingerprint = ?", (fingerprint,)) if fingerprint is not None else ("1", ())


def _finite(number: float) -> float:
    return float(number) if math.isfinite(number) else 0.0
