"""Checkpoints against a naive twin: a set of prefixes. Found exactly, kept within budgets, given up by value."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceread.cache.contract import Key
from onceread.cache.errors import PinRefused
from onceread.cache.memory import NODE_BYTES
from onceread.cache.names import prefix_name
from tests.cache.checkpointed import checkpointed_store, checkpoints_of, restore, take, taken
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
