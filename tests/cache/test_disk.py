"""The disk tier, used as the store uses it."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from onceread.cache.contract import Use
from onceread.cache.disk import DiskTier
from onceread.cache.errors import ChunkGone, DiskUnusable, NoRoom
from tests.cache.disks import (
    BLOCK,
    FINGERPRINT,
    ONCE,
    OTHER,
    PLENTY,
    blob_of,
    chain,
    file_of,
    files,
    keys,
    lying,
    open_tier,
    packed,
    pin_of,
    put,
    single,
    sound,
)


@pytest.fixture
def tier(tmp_path: Path):
    tier = open_tier(tmp_path / "cache")
    yield tier
    tier.close()


def test_what_is_written_is_read_also_after_a_restart(tmp_path: Path) -> None:
    chunks = chain(*range(10), cuts=[4, 7, 10])
    with_tier = open_tier(tmp_path)
    for chunk in chunks:
        put(with_tier, chunk)
    with_tier.close()
    again = open_tier(tmp_path)
    assert [row.record for row in again.rows()] == chunks
    assert [again.read(chunk) for chunk in chunks] == [blob_of(chunk) for chunk in chunks]
    assert sound(again)
    again.close()


def test_bytes_are_counted_as_they_lie_on_disk(tier: DiskTier, tmp_path: Path) -> None:
    written = put(tier, single(1), size=10_000)
    assert written.file_bytes == lying(tmp_path / "cache") == tier.totals().bytes
    totals = tier.totals(FINGERPRINT)
    assert (totals.chunks, totals.tokens, totals.budget, totals.pinned_bytes) == (1, 1, PLENTY, 0)
    assert tier.totals(OTHER).bytes == 0


def test_a_chunk_that_is_there_is_not_written_again(tier: DiskTier, tmp_path: Path) -> None:
    first = put(tier, single(1))
    before = file_of(tmp_path / "cache", single(1)).stat().st_ino
    assert tier.write(single(1), b"other", ONCE) == first
    assert file_of(tmp_path / "cache", single(1)).stat().st_ino == before
    assert tier.read(single(1)) == blob_of(single(1))


def test_a_chunk_whose_file_somebody_removed_is_written_again(tier: DiskTier, tmp_path: Path) -> None:
    put(tier, single(1))
    file_of(tmp_path / "cache", single(1)).unlink()
    put(tier, single(1))
    assert tier.read(single(1)) == blob_of(single(1))
    assert tier.totals().chunks == 1


def test_a_full_tier_evicts_the_cheapest_and_says_which(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=3 * BLOCK)
    for token, value in [(1, 5.0), (2, 1.0), (3, 3.0)]:
        assert put(tier, single(token), value).evicted == []
    assert put(tier, single(4), 2.5).evicted == [(FINGERPRINT, single(2).key)]
    assert put(tier, single(5), 9.0).evicted == [(FINGERPRINT, single(3).key)], "the clock counts"
    assert keys(tier.rows()) == {single(t).key for t in (1, 4, 5)}
    assert tier.totals().evictions == 2
    assert lying(tmp_path) == 3 * BLOCK
    with pytest.raises(ChunkGone):
        tier.read(single(2))
    tier.close()


def test_models_and_namespaces_share_one_budget(tmp_path: Path) -> None:
    one = open_tier(tmp_path, budget=2 * BLOCK)
    two = open_tier(tmp_path, budget=2 * BLOCK, fingerprint=OTHER)
    foreign = [single(token, fingerprint=OTHER) for token in (1, 2)]
    put(one, single(1), 1.0)
    put(two, foreign[0], 2.0)
    assert put(two, foreign[1], 3.0).evicted == [(FINGERPRINT, single(1).key)]
    assert keys(one.rows()) == set()
    assert len(one.all_rows()) == 2
    assert {model.fingerprint for model in one.models()} == {FINGERPRINT, OTHER}
    one.close()
    two.close()


def test_use_defends_a_chunk(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=2 * BLOCK)
    put(tier, single(1), 1.0)
    put(tier, single(2), 2.0)
    tier.touch([(single(1).key, Use(5, ONCE.last_used + 1, 5.0)), (single(99).key, ONCE)])
    assert put(tier, single(3)).evicted == [(FINGERPRINT, single(2).key)]
    (row,) = [row for row in tier.rows() if row.key == single(1).key]
    assert row.use == Use(5, ONCE.last_used + 1, 5.0)
    tier.close()


def test_what_does_not_fit_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=2 * BLOCK)
    put(tier, single(1))
    put(tier, single(2), pinned=True)
    with pytest.raises(NoRoom, match="larger than the budget"):
        put(tier, single(3), size=9000)
    with pytest.raises(NoRoom, match="pinned"):
        put(tier, single(3), size=5000)
    assert [tier.read(single(t)) for t in (1, 2)] == [blob_of(single(t)) for t in (1, 2)]
    assert sound(tier)
    tier.close()


def test_a_smaller_budget_holds_from_the_moment_of_opening(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for token in range(6):
        put(tier, single(token), float(token))
    tier.close()
    tier = open_tier(tmp_path, budget=2 * BLOCK)
    assert keys(tier.rows()) == {single(4).key, single(5).key}
    assert lying(tmp_path) == 2 * BLOCK
    tier.close()


def test_remove_takes_files_and_rows(tier: DiskTier, tmp_path: Path) -> None:
    for token in (1, 2, 3):
        put(tier, single(token))
    tier.remove([single(1).key, single(3).key, single(77).key])
    assert keys(tier.rows()) == {single(2).key}
    assert files(tmp_path / "cache") == [file_of(tmp_path / "cache", single(2))]


def test_others_changes_are_told_once_and_own_ones_never(tmp_path: Path) -> None:
    one, two = open_tier(tmp_path), open_tier(tmp_path)
    foreign = open_tier(tmp_path, fingerprint=OTHER)
    assert one.rows() == two.rows() == []
    put(one, single(1))
    put(two, single(2))
    put(foreign, single(3, fingerprint=OTHER))
    changes = one.refresh()
    assert (keys(changes.added), changes.removed, changes.pins) == ({single(2).key}, [], False)
    assert not one.refresh()
    two.remove([single(1).key])
    one.remove([single(2).key])
    assert one.refresh().removed == [single(1).key]
    assert keys(two.refresh().added) == set(), "it came and went, and both were told or done by this one"
    two.pin(pin_of(packed(1)))
    assert one.refresh().pins
    assert not one.refresh()
    put(one, single(4))  # so that there is something to hear
    heard = two.refresh()
    assert (keys(heard.added), heard.pins) == ({single(4).key}, False)
    for tier in (one, two, foreign):
        tier.close()


def test_evictions_by_others_are_told(tmp_path: Path) -> None:
    one, two = open_tier(tmp_path, budget=BLOCK), open_tier(tmp_path, budget=BLOCK)
    put(one, single(1))
    one.refresh()
    put(two, single(2))
    changes = one.refresh()
    assert (keys(changes.added), changes.removed) == ({single(2).key}, [single(1).key])
    one.close()
    two.close()


def test_writes_of_another_thread_of_the_same_process_are_own_ones(tier: DiskTier) -> None:
    def write() -> None:
        for token in range(30):
            put(tier, single(token))

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert not tier.refresh()
    thread.join()
    assert not tier.refresh()
    assert len(tier.rows()) == 30


def test_after_close_every_call_is_refused(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tier.close()
    tier.close()
    for call in (tier.rows, tier.refresh, tier.totals, lambda: put(tier, single(1))):
        with pytest.raises(DiskUnusable, match="closed"):
            call()
    assert not files(tmp_path)


def test_many_threads_write_read_and_evict_at_once(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=12 * BLOCK)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(40):
                chunk = single((seed * 7 + step * 3) % 20)
                put(tier, chunk, float(step % 5))
                tier.touch([(chunk.key, ONCE)])
                tier.refresh()
                assert tier.totals().bytes <= 12 * BLOCK
                with suppress(ChunkGone):
                    assert tier.read(chunk) == blob_of(chunk)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sound(tier)
    assert not tier.refresh()
    tier.close()
