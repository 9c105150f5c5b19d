"""Checkpoints against a naive twin: a set of prefixes. Found exactly, kept within budgets, given up by value."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceread.cache import chunkfile
from onceread.cache.contract import Key
from onceread.cache.errors import PinRefused
from onceread.cache.memory import NODE_BYTES
from onceread.cache.names import prefix_name
from onceread.cache.store import Store
from tests.cache.checkpointed import checkpointed_store, checkpoints_of, load, restore, take, taken
from tests.cache.stores import END, make_store, recall, remember, state, tokens

RUNS = st.lists(
    st.tuples(st.sampled_from([3, 4, END]), st.integers(1, 120)).map(lambda run: [run[0]] * run[1]),
    min_size=1,
    max_size=6,
).map(lambda runs: tokens(*itertools.chain.from_iterable(runs)))
NAMESPACES = st.sampled_from(["a", "b"])
ONE = 3032 + NODE_BYTES  # what a checkpoint of `taken` takes in RAM
HUGE = 400 * 2**20


def numbers(n: int, first: int = 10) -> np.ndarray:
    return tokens(*(first + np.arange(n) % 800))


class Machine(RuleBasedStateMachine):
    """What is found is the deepest one that was put on this very path, or with a small budget one of the lower ones."""

    budgets = (1 << 30,)

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.store = checkpointed_store(memory=data.draw(st.sampled_from(self.budgets)))
        self.put: set[tuple[str, tuple[int, ...]]] = set()
        self.paths: list[tuple[str, np.ndarray]] = []
        self.pinned: dict[str, tuple[str, np.ndarray, int]] = {}
        self.lossless = True

    @rule(namespace=NAMESPACES, path=RUNS, data=st.data())
    def read(self, namespace: str, path: np.ndarray, data: st.DataObject) -> None:
        ends = sorted(data.draw(st.sets(st.integers(1, len(path)), max_size=4)))
        kept = take(self.store, path, *ends, namespace=namespace)
        self._note(kept)
        self.put |= {(namespace, tuple(path[:end].tolist())) for end in ends}
        self.paths.append((namespace, path))

    @rule(namespace=NAMESPACES, path=RUNS, final=st.booleans())
    def read_without_a_checkpoint(self, namespace: str, path: np.ndarray, final: bool) -> None:
        kept = remember(self.store, path, namespace, final=final)
        self._note(kept)

    @rule(data=st.data())
    def add_one_in_the_middle(self, data: st.DataObject) -> None:
        if self.paths:
            namespace, path = data.draw(st.sampled_from(self.paths))
            end = data.draw(st.integers(1, len(path)))
            stored = self.store.match(namespace, path[:end]).length == end
            kept = self.store.put_checkpoint(namespace, path[:end], taken(path[:end]), reach=end)
            assert stored or not kept
            self._note(kept)
            self.put.add((namespace, tuple(path[:end].tolist())))

    def _note(self, kept: bool) -> None:
        self.lossless = self.lossless and kept and self.store.stats().memory.evictions_total == 0

    @rule(namespace=NAMESPACES, path=RUNS)
    def look_for(self, namespace: str, path: np.ndarray) -> None:
        self._look(namespace, path)

    @rule(data=st.data())
    def look_for_what_was_there(self, data: st.DataObject) -> None:
        if self.paths:
            namespace, path = data.draw(st.sampled_from(self.paths))
            path = path[: data.draw(st.integers(0, len(path)))]
            self._look(data.draw(NAMESPACES), path)
            self.store.use(namespace, path, text=True)

    def _look(self, namespace: str, path: np.ndarray) -> None:
        found = restore(self.store, path, namespace)
        known = {
            len(prefix)
            for space, prefix in self.put
            if space == namespace and prefix == tuple(path[: len(prefix)].tolist())
        }
        assert found in known | {0}
        if self.lossless:
            assert found == max(known, default=0)

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        if self.paths:
            namespace, path = data.draw(st.sampled_from(self.paths))
            if self.store.match(namespace, path).length == len(path) > 0:
                try:
                    made = self.store.pin(namespace, path, "kept")
                except PinRefused:
                    return
                at = self.store.checkpoint(namespace, path)
                self.pinned[made.id] = namespace, path, at.length if at is not None else 0

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if self.pinned:
            pin_id = data.draw(st.sampled_from(sorted(self.pinned)))
            assert self.store.unpin(pin_id, None)
            del self.pinned[pin_id]

    @rule(namespace=NAMESPACES)
    def clear(self, namespace: str) -> None:
        self.store.clear([namespace])
        self.put = {each for each in self.put if each[0] != namespace}
        self.paths = [each for each in self.paths if each[0] != namespace]
        self.pinned = {id_: pin for id_, pin in self.pinned.items() if pin[0] != namespace}

    @invariant()
    def budgets_hold(self) -> None:
        stats = self.store.stats().memory
        assert stats.bytes <= stats.budget
        assert stats.checkpoint_bytes <= stats.budget // 2

    @invariant()
    def the_books_agree_with_what_is_there(self) -> None:
        stats, there = self.store.stats().memory, list(self.store._tree)
        assert all(chunk.blob is not None for chunk in there)
        assert stats.bytes == sum(len(chunk.blob or b"") + NODE_BYTES for chunk in there)
        found = checkpoints_of(self.store)
        assert (stats.checkpoints, stats.checkpoint_bytes) == (
            len(found),
            sum(len(chunk.blob or b"") + NODE_BYTES for chunk in found),
        )
        assert (stats.chunks, stats.tokens) == (len(there) - len(found), sum(chunk.n for chunk in there))

    @invariant()
    def nothing_is_cut_off_from_its_root(self) -> None:
        for chunk in self.store._tree:
            assert chunk.parent == chunk.root or self.store._tree.ending(chunk.parent)

    @invariant()
    def what_is_pinned_stays(self) -> None:
        for namespace, path, at in self.pinned.values():
            assert recall(self.store, path, namespace) == len(path)
            assert restore(self.store, path, namespace) >= at


class SmallBudgets(Machine):
    budgets = (3 * ONE, 5 * ONE, 12 * ONE, 30 * ONE)


TestPlenty = Machine.TestCase
TestPlenty.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestSmallBudgets = SmallBudgets.TestCase
TestSmallBudgets.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# -- finding ------------------------------------------------------------------


def test_a_checkpoint_beyond_the_tokens_or_of_another_path_or_namespace_is_not_found() -> None:
    store = checkpointed_store()
    path = numbers(700)
    assert take(store, path, 300, 600)
    assert [restore(store, path[:n]) for n in (299, 300, 599, 600, 700)] == [0, 300, 300, 600, 600]
    edited = path.copy()
    edited[450] = 5
    assert restore(store, edited) == 300
    edited[299] = 5
    assert restore(store, edited) == 0
    assert store.checkpoint("another", path) is None


def test_chunks_end_where_a_checkpoint_is_to_be_and_do_not_grow_beyond() -> None:
    store = checkpointed_store()
    path = numbers(600)
    remember(store, path[:100], cuts=[40, 100])
    assert store.gap("n", path, final=False, cuts=[40, 100, 130, 500]) == (100, 130)
    remember(store, path, cuts=[40, 100, 130, 500])
    assert sorted(chunk.end for chunk in store._tree) == [40, 100, 130, 386, 500, 600]
    assert store.gap("n", path[:200], final=False, cuts=[40]) is None


def test_a_chunk_that_ends_at_a_checkpoint_is_never_replaced_by_a_longer_one() -> None:
    store = checkpointed_store()
    path = numbers(250)
    take(store, path[:100], 100)
    remember(store, path)
    assert restore(store, path) == 100
    assert store.stats().memory.tokens == 250


def test_a_chunk_that_goes_on_behind_the_checkpoint_is_split() -> None:
    store = checkpointed_store()
    path = numbers(600)
    remember(store, path)
    assert store.put_checkpoint("n", path[:300], taken(path[:300]), reach=300)
    assert store.stats().split_chunks_total == 1
    assert restore(store, path) == 300
    assert recall(store, path) == 600


def test_a_split_keeps_the_checkpoint_at_the_end_of_what_is_split() -> None:
    store = checkpointed_store()
    path = numbers(400)
    take(store, path, 256, 400)
    remember(store, tokens(*path[:200], *[5] * 50))
    assert store.stats().split_chunks_total == 1
    assert restore(store, path) == 400
    assert restore(store, path[:399]) == 256


def test_where_covers_overlap_the_one_that_ends_at_the_checkpoint_is_taken() -> None:
    """[0,256) and [0,100) + [100,200) of the same path, as two processes may cut it: the longest match passes over."""
    store = checkpointed_store()
    path = numbers(256)
    take(store, path[:200], 100, 200)
    wide = state(path, 0, 256)
    root = store._root("n")
    chunk = store._holdings.chunk(
        root, root, Key(prefix_name(root, path.tobytes()), 0), path.tobytes(), text=True
    )
    store._tree.add(chunk)
    assert store._holdings.hold(chunk, wide)
    assert len(store.match("n", path).parts) == 1
    assert restore(store, path) == 200
    assert restore(store, path[:150]) == 100


def test_checkpoints_without_all_their_chunks_are_not_found() -> None:
    store = checkpointed_store()
    path = numbers(600)
    take(store, path, 256, 512)
    lost = store.match("n", path).parts[1].chunk
    store.spoil(lost)
    assert restore(store, path) == 256
    remember(store, path)
    assert restore(store, path) == 512


def test_nothing_is_put_where_the_chunks_are_not_stored() -> None:
    store = checkpointed_store()
    path = numbers(300)
    remember(store, path[:200])
    assert not store.put_checkpoint("n", path, taken(path), reach=300)
    assert store.checkpoint("n", path) is None


def test_there_is_no_room_for_a_second_one_at_the_same_position() -> None:
    store = checkpointed_store()
    path = numbers(300)
    assert store.room_for_checkpoint("n", path, 100)
    take(store, path, 300)
    assert not store.room_for_checkpoint("n", path, 100)
    assert store.put_checkpoint("n", path, taken(path), reach=300)
    assert store.stats().memory.checkpoints == 1
    assert store.stats().refused_checkpoints_total == 0


# -- budgets and eviction ---------------------------------------------------------------------------


def test_when_one_is_evicted_the_next_lower_one_serves() -> None:
    store = checkpointed_store(memory=8 * ONE)
    path = numbers(1000)
    take(store, path, 300, 900)
    store.use("n", path, text=True)
    assert restore(store, path) == 900
    low, high = sorted(checkpoints_of(store), key=lambda chunk: chunk.start)
    low.occasions = 20
    store._memory.touch(low)
    other = tokens(*[5] * 999)
    take(store, other, *range(300, 901, 100))
    assert high.blob is None
    assert restore(store, path) == 300


def test_orphans_go_before_any_checkpoint() -> None:
    store = checkpointed_store(memory=20 * ONE)
    kept = numbers(256)
    take(store, kept, 256)
    for i in range(100):
        remember(store, tokens(*[100 + i] * 250))
        assert restore(store, kept) == 256
    assert store.stats().memory.evictions_total > 50


def test_what_is_just_read_goes_after_older_orphans() -> None:
    store = checkpointed_store(memory=6 * (NODE_BYTES + 1024))
    for i in range(5):
        remember(store, tokens(*[100 + i] * 256))
    path = numbers(256 * 4)
    remember(store, path)
    assert recall(store, path) == len(path)


def test_of_two_orphans_the_older_one_goes_first_however_deep_the_other_lies() -> None:
    store = checkpointed_store(memory=5 * (NODE_BYTES + 1024))
    older, path, newcomer = tokens(*[5] * 256), numbers(256 * 4), tokens(*[6] * 256)
    for each in older, path, newcomer:
        remember(store, each)
    assert [recall(store, each) for each in (older, path, newcomer)] == [0, 1024, 256]


def test_making_room_spares_the_chunk_inside_which_the_checkpoint_is_to_be() -> None:
    store = checkpointed_store(memory=100_000)
    path = numbers(200)
    assert store.put("n", path, 0, 200, bytes(60_000))
    assert not store.room_for_checkpoint("n", path[:100], 45_000)
    assert store.match("n", path).length == 200


def test_checkpoints_that_are_small_beside_their_chunks_grow_old_as_well() -> None:
    store = checkpointed_store(memory=300_000)
    daily = numbers(257)
    for i in range(200):
        path = daily if i == 0 else tokens(*[10 + i] * 257)
        for end in 256, 257:
            if (gap := store.gap("n", path[:end], final=True)) is not None:
                assert store.put("n", path[:end], *gap, bytes(8_000))
        assert store.put_checkpoint("n", path[:256], bytes(100), reach=256)
        if i < 8:
            store.use("n", daily, text=True)
        assert i > 20 or store.checkpoint("n", daily) is not None, "outlives a turnover"
    assert store.checkpoint("n", daily) is None


def test_chunks_of_a_store_without_checkpoints_are_worth_what_they_were() -> None:
    plain, other = make_store(), checkpointed_store()
    for store in plain, other:
        remember(store, numbers(256))
    (chunk,), (bare,) = plain._tree, other._tree
    assert chunk.value > 0
    assert bare.value == 0


def test_half_the_budget_holds_at_every_step_with_checkpoints_of_400_mb() -> None:
    rng = random.Random(7)
    budget = 4 * 2**30
    store = checkpointed_store(memory=budget)
    blob = bytes(HUGE)  # mapped lazily: takes no memory as long as nobody looks into it
    paths = [numbers(2000, first) for first in range(10, 18)]
    evicted = 0
    for _ in range(300):
        path = rng.choice(paths)
        end = rng.choice((250, 700, 1500, 1990))
        remember(store, path[: end + 10], cuts=[end])
        before = store.stats().memory
        if store.room_for_checkpoint("n", path[:end], HUGE):
            made = store.stats().memory
            assert made.checkpoint_bytes + HUGE + NODE_BYTES <= budget // 2, "room is made before it is taken"
            assert made.bytes + HUGE + NODE_BYTES <= budget
            evicted += before.checkpoints - made.checkpoints
            assert store.put_checkpoint("n", path[:end], blob, reach=end)
        now = store.stats().memory
        assert now.checkpoint_bytes <= budget // 2
        assert now.bytes <= budget
        assert now.checkpoints == 5 or evicted == 0
        at = store.checkpoint("n", path[: end + 10])
        assert at is not None
        assert at.length == end
    assert evicted > 20
    assert store.stats().refused_checkpoints_total == 0


@pytest.mark.parametrize("over", [0, 1], ids=["exactly half the budget fits", "a byte more does not"])
def test_a_checkpoint_of(over: int) -> None:
    store = checkpointed_store(memory=2 * HUGE)
    path = numbers(300)
    remember(store, path)
    size = HUGE - NODE_BYTES + over
    assert store.room_for_checkpoint("n", path, size) == (not over)
    assert store.put_checkpoint("n", path, bytes(size), reach=300) == (not over)
    stats = store.stats()
    assert (stats.refused_checkpoints_total, stats.memory.checkpoints) == ((2, 0) if over else (0, 1))


def test_one_that_has_no_room_evicts_none_in_vain() -> None:
    store = checkpointed_store(memory=6 * ONE)
    path, other = numbers(600), tokens(*[5] * 300)
    take(store, path, 200, 400, 600)
    pinned = store.pin("n", path[:400], "kept")
    assert not store.room_for_checkpoint("n", other, 2 * ONE)
    assert store.stats().memory.checkpoints == 3
    assert store.stats().refused_checkpoints_total == 1
    store.unpin(pinned.id, None)
    assert store.room_for_checkpoint("n", other, 2 * ONE)


def test_what_is_used_on_many_occasions_outlives_what_is_read_once() -> None:
    store = checkpointed_store(memory=12 * ONE)
    daily = numbers(500)
    take(store, daily, 500)
    for i in range(60):
        take(store, tokens(*[100 + i] * 500), 500)
        if i < 4 or i % 10 == 0:  # six would push it out if it were used once
            store.use("n", np.append(daily, 3).astype(np.int32), text=True)
            assert restore(store, daily) == 500
    for i in range(300):
        take(store, tokens(*[300 + i] * 500), 500)
    assert restore(store, daily) == 0, "and does not stay for ever"


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
