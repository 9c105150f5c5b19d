"""The index against dictionaries that do the same slowly."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onceread.cache.contract import Key, Record, Use
from onceread.cache.errors import NoRoom
from onceread.cache.index import Index, Reservation
from tests.cache.disks import FINGERPRINT, ONCE, OTHER, chain, packed, record, single

BUDGET = 40


def fresh(budget: int | None = BUDGET) -> Index:
    index = Index(sqlite3.connect(":memory:", isolation_level=None))
    index.create()
    if budget is not None:
        index.set_budget(budget)
    return index


@dataclass
class Entry:
    record: Record
    fingerprint: bytes
    size: int
    priority: float
    last_used: float
    pinned: bool


@dataclass
class Twin:
    """Chunks in a dictionary, victims found by looking at each."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    writing: dict[str, tuple[Record, int]] = field(default_factory=dict)
    clock: float = 0.0

    def total(self) -> int:
        return sum(e.size for e in self.entries.values()) + sum(size for _, size in self.writing.values())

    def ancestors(self, name: bytes) -> set[bytes]:
        found = {name}
        for entry in self.entries.values():
            if entry.record.name == name:
                found |= self.ancestors(entry.record.parent)
        return found

    def may_go(self, key: Key) -> bool:
        others = [e.record for k, e in self.entries.items() if k != key]
        if self.entries[key].pinned:
            return False
        if any(other.name == key.name for other in others):
            return True
        parents = {other.parent for other in others} | {r.parent for r, _ in self.writing.values()}
        return key.name not in parents

    def make_room(self, need: int, newcomer: Record) -> list[Key] | None:
        kept = self.ancestors(newcomer.parent)
        gone = []
        while self.total() + need > BUDGET:
            candidates = [key for key in self.entries if key.name not in kept and self.may_go(key)]
            if not candidates:
                return None
            victim = min(candidates, key=self.rank)
            self.clock = max(self.clock, self.entries.pop(victim).priority)
            gone.append(victim)
        return gone

    def rank(self, key: Key) -> tuple:
        entry = self.entries[key]
        return entry.priority, entry.last_used, -key.start, key.name


def universe() -> list[tuple[bytes, Record]]:
    """Paths that share beginnings, cut in two ways, of two models."""
    found = {}
    for fingerprint in (FINGERPRINT, OTHER):
        for last in (7, 8):
            path = packed(1, 2, 3, 4, 5, last)
            for start, end in [(0, 2), (2, 4), (4, 6), (0, 3), (3, 6), (1, 4), (0, 4)]:
                chunk = record(path, start, end, fingerprint=fingerprint)
                found[chunk.key] = fingerprint, chunk
        for token in range(20, 24):
            chunk = single(token, fingerprint=fingerprint)
            found[chunk.key] = fingerprint, chunk
    return list(found.values())


CHUNKS = universe()
chunks = st.sampled_from(CHUNKS)
values = st.integers(1, 6).map(float)  # 0 has a meaning of its own: test_checkpoint_index.py


class IndexAgainstTwin(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.index = fresh()
        self.twin = Twin()
        self.told = 0
        self.known: set[Key] = set()
        self.numbers = 0

    @rule(chunk=chunks, value=values, size=st.integers(1, 9), pinned=st.integers(0, 9).map(lambda i: i == 0))
    def write(self, chunk: tuple[bytes, Record], value: float, size: int, pinned: bool) -> None:
        fingerprint, new = chunk
        if new.key in self.twin.entries:
            return
        if self.make_room(size, new):
            clock = self.twin.clock
            self.index.insert(fingerprint, new, Use(1, value, value), size, pinned=pinned)
            self.twin.entries[new.key] = Entry(new, fingerprint, size, clock + value, value, pinned)

    @rule(chunk=chunks, size=st.integers(1, 9))
    def reserve(self, chunk: tuple[bytes, Record], size: int) -> None:
        if self.make_room(size, chunk[1]):
            self.numbers += 1
            id_ = str(self.numbers)
            self.index.reserve(Reservation(id_, "me", chunk[1].key), chunk[1].parent, size)
            self.twin.writing[id_] = chunk[1], size

    def make_room(self, size: int, new: Record) -> bool:
        before = dict(self.twin.entries), self.twin.clock
        self.index.connection.execute("BEGIN IMMEDIATE")
        expected = self.twin.make_room(size, new)
        if expected is None:
            with pytest.raises(NoRoom):
                self.index.make_room(size, new)
            self.index.connection.execute("ROLLBACK")
            self.twin.entries, self.twin.clock = before
            return False
        assert [victim.key for victim in self.index.make_room(size, new)] == expected
        self.index.connection.execute("COMMIT")
        return True

    @precondition(lambda self: self.twin.writing)
    @rule(which=st.randoms())
    def give_back(self, which) -> None:
        id_ = which.choice(sorted(self.twin.writing))
        self.index.unreserve([id_])
        del self.twin.writing[id_]

    @rule(chunk=chunks)
    def remove(self, chunk: tuple[bytes, Record]) -> None:
        gone = self.index.delete([chunk[1].key])
        assert bool(gone) == (self.twin.entries.pop(chunk[1].key, None) is not None)

    @rule(chunk=chunks, value=values, when=values)
    def touch(self, chunk: tuple[bytes, Record], value: float, when: float) -> None:
        key = chunk[1].key
        self.index.touch([(key, Use(2, when, value))])
        if key in self.twin.entries:
            entry = self.twin.entries[key]
            entry.priority, entry.last_used = self.twin.clock + value, max(entry.last_used, when)

    @rule()
    def catch_up(self) -> None:
        rows = {row.key for row in self.index.rows(FINGERPRINT, self.told)}
        gone = {key for key in self.index.removed(self.told) if self.index.row(key) is None}
        self.told = self.index.state().seq
        self.known = (self.known | rows) - gone
        now = {key for key, entry in self.twin.entries.items() if entry.fingerprint == FINGERPRINT}
        assert self.known == now, "who hears of all changes knows what is there"

    @invariant()
    def both_hold_the_same(self) -> None:
        assert {row.key for row in self.index.rows()} == set(self.twin.entries)
        assert self.index.state().clock == self.twin.clock
        for fingerprint in (FINGERPRINT, OTHER, None):
            totals = self.index.totals(fingerprint, 0)
            mine = [e for e in self.twin.entries.values() if fingerprint in (None, e.fingerprint)]
            assert totals.bytes == sum(e.size for e in mine)
            assert totals.pinned_bytes == sum(e.size for e in mine if e.pinned)
            assert (totals.chunks, totals.tokens) == (len(mine), sum(e.record.n for e in mine))

    @invariant()
    def the_budget_holds(self) -> None:
        assert self.index.total() == self.twin.total() <= BUDGET


TestIndexAgainstTwin = IndexAgainstTwin.TestCase
TestIndexAgainstTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def put(index: Index, chunk: Record, value: float, *, pinned: bool = False, size: int = 10) -> None:
    index.insert(FINGERPRINT, chunk, Use(1, 1.0, value), size, pinned=pinned)


def test_a_parent_of_little_worth_outlives_its_child() -> None:
    index = fresh()
    parent, child = chain(1, 2, cuts=[1, 2])
    put(index, parent, 0.0)
    put(index, child, 5.0)
    assert [v.key for v in index.make_room(30, single(9))] == [child.key]
    assert index.state().clock == 5.0, "the clock rises to the worth of what went"


def test_what_the_newcomer_continues_stays_even_if_nothing_else_can_go() -> None:
    index = fresh()
    first, second, third = chain(1, 2, 3, cuts=[1, 2, 3])
    put(index, first, 0.0, size=20)
    put(index, second, 0.0, size=20)
    with pytest.raises(NoRoom):
        index.make_room(5, third)


def test_of_two_chunks_that_end_one_prefix_one_can_go_though_others_continue_it() -> None:
    index = fresh()
    path = packed(1, 2, 3, 4)
    wide, narrow, child = record(path, 0, 3), record(path, 2, 3), record(path, 3, 4)
    for chunk in (wide, narrow, child):
        put(index, chunk, 1.0 if chunk is wide else 3.0)
    assert [v.key for v in index.make_room(20, single(9))] == [wide.key]


def test_a_prefix_stays_while_what_continues_it_is_being_written() -> None:
    index = fresh()
    parent, child = chain(1, 2, cuts=[1, 2])
    put(index, parent, 0.0)
    put(index, single(7), 5.0)
    index.reserve(Reservation("1", "me", child.key), child.parent, 10)
    assert [v.key for v in index.make_room(20, single(9))] == [single(7).key]
    index.unreserve(["1"])
    assert [v.key for v in index.make_room(40, single(9))] == [parent.key]


def test_a_chunk_larger_than_the_budget_is_refused_with_the_figures() -> None:
    with pytest.raises(NoRoom, match="41 bytes is larger than the budget of 40 bytes"):
        fresh().make_room(41, single(1))


def test_without_a_budget_there_is_always_room() -> None:
    assert fresh(budget=None).make_room(1 << 40, single(1)) == []


def test_worth_that_is_no_number_counts_as_nothing() -> None:
    index = fresh()
    put(index, single(1), float("nan"))
    index.touch([(single(1).key, Use(1, float("inf"), float("inf")))])
    row = index.row(single(1).key)
    assert row is not None
    assert row.use.value == 0.0


def test_a_row_comes_back_as_it_was_put_in() -> None:
    index = fresh()
    chunk = chain(*range(9), cuts=[4, 9])[1]
    index.insert(FINGERPRINT, chunk, ONCE, 7, pinned=True)
    row = index.row(chunk.key)
    assert row is not None
    assert (row.record, row.use, row.file_bytes, row.pinned, row.fingerprint) == (
        chunk,
        ONCE,
        7,
        True,
        FINGERPRINT,
    )
