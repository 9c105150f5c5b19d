"""What the index on disk makes of checkpoints, and of chunks that are worth nothing without one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from onceread.cache.contract import Record, Use
from onceread.cache.errors import NoRoom
from onceread.cache.index import Index, Reservation
from onceread.cache.names import checkpoint_name
from tests.cache.disks import FINGERPRINT, ONCE, OTHER, chain, single


def fresh(budget: int) -> Index:
    index = Index(sqlite3.connect(":memory:", isolation_level=None))
    index.create()
    index.set_budget(budget)
    return index


def checkpoint(chunk: Record, reach: int = 1) -> Record:
    """At the end of a chunk."""
    name = checkpoint_name(chunk.name)
    return replace(
        chunk,
        name=name,
        parent=chunk.name,
        start=chunk.end,
        tokens=b"",
        spelled=b"",
        lengths=b"",
        reach=reach,
    )


def add(
    index: Index, record: Record, value: float, size: int = 1, fingerprint: bytes = FINGERPRINT
) -> list[bytes]:
    """The names of what had to go."""
    victims = index.make_room(size, record)
    index.insert(fingerprint, record, replace(ONCE, value=value), size, pinned=False)
    return [victim.key.name for victim in victims]


def test_a_chunk_goes_first_once_no_checkpoint_hangs_on_it_and_before_that_it_is_no_leaf() -> None:
    index = fresh(6)
    head, tail = chain(1, 2, 3, 4, cuts=[2, 4])
    for chunk in head, tail:
        add(index, chunk, 0.0)
    at_head, at_tail = checkpoint(head), checkpoint(tail)
    add(index, at_head, 5.0)
    add(index, at_tail, 1.0)
    cheap, dear = (single(token, fingerprint=OTHER) for token in (7, 8))
    add(index, cheap, 2.0, fingerprint=OTHER)
    add(index, dear, 9.0, fingerprint=OTHER)
    gone = [add(index, single(20 + i, fingerprint=OTHER), 99.0, fingerprint=OTHER) for i in range(6)]
    assert gone == [[at_tail.name], [tail.name], [cheap.name], [at_head.name], [head.name], [dear.name]]
    assert index.state().clock == 9.0, "what is worth nothing does not move it"


def test_what_is_worth_nothing_by_itself_stays_so_when_it_is_used() -> None:
    index = fresh(3)
    chunk, other = chain(1, 2, cuts=[2])[0], single(7, fingerprint=OTHER)
    add(index, other, 1.0, fingerprint=OTHER)
    add(index, chunk, 0.0)
    index.touch([(chunk.key, Use(2, ONCE.last_used + 5, 0.0))])
    add(index, single(8, fingerprint=OTHER), 1.0, fingerprint=OTHER)
    assert add(index, single(9, fingerprint=OTHER), 1.0, fingerprint=OTHER) == [chunk.name]


def test_what_an_index_built_anew_overrated_can_be_put_right() -> None:
    index = fresh(4)
    head, tail = chain(1, 2, 3, 4, cuts=[2, 4])
    add(index, head, 50.0)
    add(index, tail, 50.0)
    index.devalue([head.key, tail.key])
    add(index, single(7), 1.0)
    assert index.make_room(3, single(8))[0].key == tail.key
    assert [row.use.value for row in index.rows()] == [1.0], (
        "then the other, which nothing continues any more"
    )


def test_checkpoints_age_among_themselves_when_only_their_half_is_full() -> None:
    index = fresh(100)
    daily = single(1)
    add(index, daily, 0.0)
    add(index, checkpoint(daily), 10.0, size=25)
    gone = []
    for token in range(2, 12):
        chunk = single(token)
        add(index, chunk, 0.0)
        gone += add(index, checkpoint(chunk), 4.0, size=25)
        assert index.checkpoint_total() <= 50
    assert checkpoint(daily).name in gone, "what was dear once does not stay for ever"
    assert gone[0] != checkpoint(daily).name
    assert index.state().clock == 0.0, "which says nothing of chunks"


def test_room_that_is_taken_for_a_checkpoint_and_not_filled_yet_counts_for_their_half() -> None:
    index = fresh(100)
    one, two = single(1), single(2)
    index.reserve(Reservation("a.1", "a", checkpoint(one).key), one.name, 30, checkpoint=True)
    index.reserve(Reservation("a.2", "a", one.key), one.parent, 30)
    with pytest.raises(NoRoom, match="10 bytes are missing for a checkpoint of 30 bytes"):
        index.make_room(30, checkpoint(two))
    assert index.make_room(20, checkpoint(two)) == []


def test_pinned_checkpoints_stay_and_leave_less_room_for_others() -> None:
    index = fresh(100)
    records = [checkpoint(single(token)) for token in range(3)]
    for record in records[:2]:
        index.insert(FINGERPRINT, record, ONCE, 25, pinned=record is records[0])
    assert [victim.key for victim in index.make_room(25, records[2])] == [records[1].key]
    with pytest.raises(NoRoom):
        index.make_room(26, records[2])


def test_what_is_worth_nothing_goes_first_also_when_much_has_been_evicted_before_it_came() -> None:
    index = fresh(2)
    for value in range(1, 9):
        add(index, single(value), float(value))
    assert index.state().clock > 0
    orphan = single(20)
    add(index, orphan, 0.0)
    assert add(index, single(21), 1.0) == [orphan.name]


def test_one_of_two_that_lead_to_the_same_checkpoint_can_go_and_moves_no_clock() -> None:
    index = fresh(5)
    head, tail = chain(1, 2, 3, 4, cuts=[2, 4])
    whole = chain(1, 2, 3, 4, cuts=[4])[0]
    for chunk in head, tail, whole:
        add(index, chunk, 0.0)
    for record in checkpoint(whole), single(7):
        index.insert(FINGERPRINT, record, ONCE, 1, pinned=True)
    assert add(index, single(8), 700.0) in ([whole.name], [tail.name])
    assert index.state().clock == index.state().checkpoint_clock == 0.0
