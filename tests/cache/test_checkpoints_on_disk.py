"""Checkpoints on disk: found after reopening and rebuilding, within the budget, pinned, shared by processes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onceread.cache import chunkfile
from onceread.cache.errors import PinRefused
from onceread.cache.memory import NODE_BYTES
from onceread.cache.store import Store
from tests.cache.checkpointed import checkpointed_store, checkpoints_of, load, restore, take, taken
from tests.cache.stores import remember, tokens

ONE = 3032 + NODE_BYTES  # what a checkpoint of `taken` takes in RAM


def numbers(n: int, first: int = 10) -> np.ndarray:
    return tokens(*(first + np.arange(n) % 800))


# -- on disk ----------------------------------------------------------------------------------------


def files_of(directory: Path) -> dict[int, Path]:
    """The files of checkpoints, by position."""
    heads = [(chunkfile.read_head(path).record, path) for path in (directory / "v1/chunks").glob("*/*.chunk")]
    return {record.start: path for record, path in heads if record.is_checkpoint}


@pytest.mark.parametrize("rebuilt", [False, True], ids=["opened again", "index deleted"])
def test_all_are_found_again_with_their_worth_when(tmp_path: Path, rebuilt: bool) -> None:
    path = numbers(1000)
    store = checkpointed_store(directory=tmp_path)
    take(store, path, 300, 500, 900)
    remember(store, tokens(*path[:200], *[5] * 90))
    assert store.wait_written(30)
    before = store.stats().disk
    assert (before.checkpoints, before.tokens, before.chunks) == (3, 1090, len(store._tree) - 3)
    assert before.checkpoint_bytes == sum(file.stat().st_blocks * 512 for file in files_of(tmp_path).values())
    store.close()
    if rebuilt:
        for index in (tmp_path / "v1").glob("index.sqlite*"):
            index.unlink()
    store = checkpointed_store(directory=tmp_path)
    assert [restore(store, path[:n]) for n in (1000, 899, 499, 299)] == [900, 500, 300, 0]
    assert sorted(chunk.reach for chunk in checkpoints_of(store)) == [200, 300, 400]
    assert replace(store.stats().disk, hit_tokens_total=0) == before
    rows = store._disk._tier.rows() if store._disk is not None else []
    assert all((row.record.is_checkpoint) == (row.use.value > 0) for row in rows)
    assert list(store._disk._tier.verify()) == []
    store.close()


@pytest.mark.parametrize("at", [50, -20], ids=["in its header", "in its state"])
def test_a_damaged_one_is_a_miss_with_a_line_in_the_log_and_the_next_lower_one_serves(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = numbers(1000)
    store = checkpointed_store(directory=tmp_path)
    take(store, path, 300, 900)
    store.close()
    file = files_of(tmp_path)[900]
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    store = checkpointed_store(directory=tmp_path)
    assert restore(store, path) == 300
    lines = [record.getMessage() for record in caplog.records if "can't be used" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("the checkpoint at 900 tokens can't be used: ")
    assert store.stats().disk.damaged_total == 1
    assert take(store, path, 900)
    assert restore(store, path) == 900
    assert store.wait_written(30)
    assert sorted(files_of(tmp_path)) == [300, 900]
    store.close()


def test_one_that_was_spoilt_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    path = numbers(600)
    store = checkpointed_store(directory=tmp_path)
    take(store, path, 300, 600)
    assert store.wait_written(30)
    found = store.checkpoint("n", path)
    assert found is not None
    store.spoil(found.state.chunk)
    assert store.wait_written(30)
    assert restore(store, path) == 300
    assert sorted(files_of(tmp_path)) == [300]
    store.close()


def test_disk_and_half_of_it_hold_at_every_step_and_orphans_go_first(tmp_path: Path) -> None:
    rng = random.Random(3)
    budget = 1024 * 1024
    store = checkpointed_store(directory=tmp_path, disk=budget)
    paths = [numbers(1000, first) for first in range(10, 18)]
    for _ in range(80):
        path = rng.choice(paths)
        end = rng.choice((250, 700, 950))
        take(store, path[: end + 10], end, size=100_000)
        remember(store, tokens(*[rng.randrange(100, 900)] * 200))
        assert store.wait_written(30)
        sizes = {file: file.stat().st_blocks * 512 for file in (tmp_path / "v1/chunks").glob("*/*.chunk")}
        assert sum(sizes.values()) <= budget
        states = sum(sizes[file] for file in sizes if file.stat().st_size > 50_000)
        assert states <= budget // 2
        disk = store.stats().disk
        assert (disk.bytes, disk.checkpoint_bytes) == (sum(sizes.values()), states)
    assert disk.checkpoints == 5
    assert disk.evictions_total > 10
    for i in range(60):
        remember(store, tokens(*[100 + i] * 150))
    assert store.wait_written(30)
    assert store.stats().disk.evictions_total > disk.evictions_total + 50
    assert store.stats().disk.checkpoints == 5
    store.close()
    store = checkpointed_store(directory=tmp_path, disk=budget // 2)
    disk = store.stats().disk
    assert disk.checkpoint_bytes <= disk.budget // 2 == budget // 4
    assert disk.checkpoints == 2
    store.close()


def test_one_too_large_for_the_disk_serves_from_ram(tmp_path: Path) -> None:
    store = checkpointed_store(directory=tmp_path, disk=300_000)
    path = numbers(600)
    take(store, path, 300, size=10_000)
    take(store, path, 300, 600, size=200_000)
    assert store.wait_written(30)
    assert restore(store, path) == 600
    assert sorted(files_of(tmp_path)) == [300]
    store.close()


def test_its_chunks_are_written_before_it_also_where_they_were_evicted(tmp_path: Path) -> None:
    store = checkpointed_store(directory=tmp_path, disk=400_000)
    path = numbers(600)
    remember(store, path)
    assert store.wait_written(30)
    for i in range(120):  # orphans push each other out on disk, not in RAM
        remember(store, tokens(*[100 + i] * 256))
    assert store.wait_written(30)
    assert all(part.chunk.file_bytes == 0 for part in store.match("n", path).parts)
    assert take(store, path, 600)
    assert store.wait_written(30)
    store.close()
    store = checkpointed_store(directory=tmp_path, disk=400_000)
    assert restore(store, path) == 600
    store.close()


def test_while_the_disk_cannot_be_read_what_is_in_ram_serves(tmp_path: Path) -> None:
    path = numbers(900)
    store = checkpointed_store(directory=tmp_path)
    take(store, path, 300, 900)
    assert store.wait_written(30)
    high = next(chunk for chunk in checkpoints_of(store) if chunk.start == 900)
    store._memory.drop(high)
    assert store._disk is not None
    store._disk.fail("gone for now", reading=True)
    assert restore(store, path) == 300
    assert store.room_for_checkpoint("n", path, 3000), "it can't be had, so it may be taken again"
    assert store.put_checkpoint("n", path, taken(path), reach=600)
    assert restore(store, path) == 900
    store.close()


# -- pins -------------------------------------------------------------------------------------------


def flood(store: Store, first: int) -> None:
    """Much that is read once, and written before the next comes."""
    for i in range(30):
        assert take(store, tokens(*[first + i] * 500), 200, 400)
        assert store.wait_written(30)


def test_a_pinned_path_keeps_its_deepest_checkpoint_and_no_other(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        store = checkpointed_store(memory=12 * ONE, directory=directory, disk=12 * 12288)
        kept = numbers(900)
        take(store, kept, 300, 600)
        pin = store.pin("n", kept[:650], "kept")
        assert [c.start for c in checkpoints_of(store) if c.pinned] == [600]
        assert pin.bytes == sum(c.size for c in store._tree if c.pinned) > 3032
        flood(store, 100)
        assert restore(store, kept) == 600
        assert restore(store, kept[:599]) == 0
        assert store.pins(None)[0].bytes >= pin.bytes
        take(store, kept, 600, 640)
        assert store.wait_written(30)
        assert [c.start for c in checkpoints_of(store) if c.pinned] == [640]
        flood(store, 200)
        assert restore(store, kept[:640]) == 640
        assert restore(store, kept[:639]) == 0
        store.close()
    store = checkpointed_store(memory=12 * ONE, directory=tmp_path, disk=12 * 12288)
    flood(store, 300)
    assert restore(store, kept) == 640
    store.close()


def test_a_pin_counts_its_checkpoint_in_the_budget() -> None:
    store = checkpointed_store(memory=1_000_000)
    first, second = numbers(300), tokens(*[5] * 300)
    for path in first, second:
        while (gap := store.gap("n", path, final=True)) is not None:
            assert store.put("n", path, *gap, bytes(100_000))
    store.put_checkpoint("n", first, bytes(450_000), reach=300)
    assert store.pin("n", first, "first").bytes == 650_000
    store.put_checkpoint("n", second, bytes(40_000), reach=300)
    assert store.pin("n", second, "second").bytes == 240_000
    third = tokens(*[6] * 100)
    assert store.put("n", third, 0, 100, bytes(20_000))
    with pytest.raises(PinRefused):
        store.pin("n", third, "third")


# -- showing ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_no_path_of_its_own_and_its_bytes_are_its_paths() -> None:
    store = checkpointed_store()
    path = numbers(300)
    take(store, path, 100, 300)
    (shown,) = store.paths(None, 10).paths
    stats = store.stats().memory
    assert shown.tokens == shown.own_tokens == 300
    assert shown.bytes_memory == 4 * 300 + 2 * 3032 == stats.bytes - len(store._tree) * NODE_BYTES
    other = tokens(*path[:100], *[5] * 50)
    take(store, other, 150)
    first, second = store.paths(None, 10).paths
    assert {first.bytes_memory, second.bytes_memory} == {4 * 50 + 3032, 4 * 200 + 3032}
    for listed in (first, second):
        assert store.find(listed.id, None)[1].tolist() in (path.tolist(), other.tolist())


def test_clearing_a_namespace_takes_its_checkpoints(tmp_path: Path) -> None:
    store = checkpointed_store(directory=tmp_path)
    path = numbers(300)
    take(store, path, 300, namespace="a")
    take(store, path, 300, namespace="b")
    assert store.wait_written(30)
    assert store.clear(["a"]) > 2 * 3032
    assert restore(store, path, "a") == 0
    assert restore(store, path, "b") == 300
    assert len(files_of(tmp_path)) == 1
    store.close()


# -- two of them ------------------------------------------------------------------------------------


def test_one_process_finds_what_the_other_has_taken_and_loses_what_it_evicts(tmp_path: Path) -> None:
    mine, other = (checkpointed_store(directory=tmp_path, disk=20 * 8192) for _ in range(2))
    path = numbers(600)
    take(other, path, 300, 600)
    assert other.wait_written(30)
    assert restore(mine, path) == 0
    mine.refresh(10)
    assert restore(mine, path) == 600
    for chunk in checkpoints_of(mine):  # so that it would have to read them
        if chunk.blob is not None:
            mine._memory.drop(chunk)
    for i in range(40):
        take(other, tokens(*[100 + i] * 300), 300)
    assert other.wait_written(30)
    assert restore(mine, path) == 0, "with or without having been told"
    mine.refresh(10)
    assert mine.stats().disk.checkpoint_bytes == other.stats().disk.checkpoint_bytes <= 20 * 8192 // 2
    mine.close()
    other.close()


CHURN = """
import random, sys
from pathlib import Path
from tests.cache.checkpointed import *
from tests.cache.stores import tokens

directory, seed, budget = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
store = checkpointed_store(memory=1_000_000, directory=directory, disk=budget)
tier = store._disk._tier
found = 0
for step in range(60):
    path = tokens(*[3 + rng.randrange(6)] * 200, *[3 + rng.randrange(3)] * 200)
    store.refresh(10)
    found += restore(store, path) > 0
    take(store, path, *sorted(rng.sample(range(1, 401), 2)), size=20_000)
    store.wait_written(30)
    taken_up = tier._database.look(lambda index: (index.total(), index.checkpoint_total()))
    assert taken_up[0] <= budget and taken_up[1] <= budget // 2, taken_up
assert found
store.close()
"""


def test_two_that_write_and_evict_in_one_directory_keep_both_budgets(tmp_path: Path) -> None:
    from tests.cache.test_two_processes import start

    budget = 400_000
    both = [start(CHURN, tmp_path, seed, budget) for seed in range(2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    store = checkpointed_store(directory=tmp_path, disk=budget)
    assert list(store._disk._tier.verify()) == [] if store._disk is not None else False
    disk = store.stats().disk
    assert disk.bytes <= budget
    assert 0 < disk.checkpoint_bytes <= budget // 2
    store.close()


def test_one_that_is_being_loaded_stays() -> None:
    store = checkpointed_store(memory=4 * ONE)
    path = numbers(100)
    take(store, path, 100)
    found = store.checkpoint("n", path)
    assert found is not None
    fetch = store.fetch(found.state)
    for i in range(20):
        take(store, tokens(*[100 + i] * 100), 100)
    assert restore(store, path) == 100
    store.close_fetch(fetch, 0)
    for i in range(20):
        take(store, tokens(*[200 + i] * 100), 100)
    assert restore(store, path) == 0
    assert load(store, found.state) is None
