"""The store in RAM under small budgets, against a naive twin: a list of all paths that were ever remembered."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceread.cache.contract import Pin
from onceread.cache.errors import PathUnknown, PinRefused
from onceread.cache.memory import NODE_BYTES
from onceread.cache.names import namespace_id
from onceread.cache.store import Store
from tests.cache.stores import END, make_store, recall, remember, tokens

# Few different tokens in runs that repeat, so that paths share and part at every kind of place.
RUNS = st.lists(
    st.tuples(st.sampled_from([3, 4, END]), st.integers(1, 120)).map(lambda run: [run[0]] * run[1]),
    min_size=1,
    max_size=6,
).map(lambda runs: tokens(*itertools.chain.from_iterable(runs)))
NAMESPACES = st.sampled_from(["a", "b"])
A_CHUNK = NODE_BYTES + 4 * 256


def common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


class Twin:
    """Knows all that was remembered and forgets nothing by itself."""

    def __init__(self) -> None:
        self.paths: dict[str, list[np.ndarray]] = {"a": [], "b": []}

    def known(self, namespace: str, path: np.ndarray) -> int:
        return max((common(path, known) for known in self.paths[namespace]), default=0)


class SmallBudget(RuleBasedStateMachine):
    """After every step: never wrong bytes, never over the budget, and the books agree with what is there."""

    store: Store

    @initialize(budget=st.sampled_from([A_CHUNK // 2, 3 * A_CHUNK, 6 * A_CHUNK, 12 * A_CHUNK]))
    def open(self, budget: int) -> None:
        self.store = make_store(memory=budget)
        self.twin = Twin()
        self.lossless = True  # nothing was evicted or refused so far
        self.pinned: dict[str, tuple[str, np.ndarray, Pin]] = {}
        self.past: list[tuple[str, np.ndarray]] = []

    @rule(namespace=NAMESPACES, path=RUNS, final=st.booleans())
    def remember(self, namespace: str, path: np.ndarray, final: bool) -> None:
        kept = remember(self.store, path, namespace, final=final)
        if kept and final and self._evictions() == 0:
            assert self.store.match(namespace, path).length == len(path)
        known = path if final else path[: self.store.match(namespace, path).length]
        self.twin.paths[namespace].append(known)
        if final:
            self.past.append((namespace, path))
        self.lossless = self.lossless and kept

    @rule(namespace=NAMESPACES, path=RUNS)
    def recall(self, namespace: str, path: np.ndarray) -> None:
        self._recall(namespace, path)

    @rule(data=st.data())
    def recall_and_use_what_was_there(self, data: st.DataObject) -> None:
        if self.past:
            namespace, path = data.draw(st.sampled_from(self.past))
            end = data.draw(st.integers(0, len(path)))
            self._recall(namespace, path[:end])
            self.store.use(namespace, path[:end], text=True)

    def _recall(self, namespace: str, path: np.ndarray) -> None:
        found = recall(self.store, path, namespace)  # checks every byte
        known = self.twin.known(namespace, path)
        assert found <= known
        if self.lossless and self._evictions() == 0:
            assert found == known

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        if not self.past:
            return
        namespace, path = data.draw(st.sampled_from(self.past))
        path = path[: data.draw(st.integers(1, len(path)))]
        if self.store.match(namespace, path).length < len(path):
            with pytest.raises(PathUnknown):
                self.store.pin(namespace, path, "not all there")
        else:
            made = self.store.pin(namespace, path, "kept")
            self.pinned[made.id] = namespace, path, made

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if self.pinned:
            pin_id = data.draw(st.sampled_from(sorted(self.pinned)))
            assert self.store.unpin(pin_id, None)
            del self.pinned[pin_id]

    @rule(namespace=NAMESPACES)
    def clear(self, namespace: str) -> None:
        self.store.clear([namespace])
        self.twin.paths[namespace] = []
        self.past = [each for each in self.past if each[0] != namespace]
        self.pinned = {id_: pin for id_, pin in self.pinned.items() if pin[0] != namespace}
        assert self.store.paths([namespace_id(namespace)], 10).total == 0

    def _evictions(self) -> int:
        return self.store.stats().memory.evictions_total

    @invariant()
    def the_budget_holds(self) -> None:
        stats = self.store.stats().memory
        assert stats.bytes <= stats.budget
        assert stats.pinned_bytes <= stats.bytes

    @invariant()
    def the_books_agree_with_what_is_there(self) -> None:
        stats, tree = self.store.stats().memory, list(self.store._tree)
        there = [chunk for chunk in tree if chunk.blob is not None]
        assert len(there) == len(tree), "without a disk, what is not in RAM is nowhere"
        assert stats.bytes == sum(len(chunk.blob or b"") + NODE_BYTES for chunk in there)
        assert (stats.chunks, stats.tokens) == (len(there), sum(chunk.n for chunk in there))

    @invariant()
    def leaves_go_first(self) -> None:
        for chunk in self.store._tree:
            assert chunk.parent == chunk.root or self.store._tree.ending(chunk.parent), (
                "cut off from its root"
            )

    @invariant()
    def what_is_pinned_stays(self) -> None:
        for namespace, path, _ in self.pinned.values():
            assert recall(self.store, path, namespace) == len(path)
        assert {pin.id for pin in self.store.pins(None)} == set(self.pinned)


TestSmallBudget = SmallBudget.TestCase
TestSmallBudget.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def remember_large(store: Store, path: np.ndarray, size: int) -> None:
    """With blobs of ``size`` bytes."""
    while (gap := store.gap("n", path, final=True)) is not None:
        assert store.put("n", path, *gap, bytes(size))


def test_a_refused_pin_says_what_it_takes_and_what_is_left() -> None:
    mib = 1024 * 1024
    store = make_store(memory=100 * mib)
    first, second = tokens(*([3] * 1024)), tokens(*([4] * 1024))
    remember_large(store, first, 12 * mib)
    remember_large(store, second, 11 * mib)
    assert store.pin("n", first, "first").bytes == 48 * mib
    assert store.stats().memory.pinned_bytes == 48 * mib
    with pytest.raises(PinRefused) as refused:
        store.pin("n", second, "second")
    figures = [float(number) for number in re.findall(r"([\d.]+) MiB", str(refused.value))]
    assert figures == [44, 48, 100, 90]


def test_a_pin_that_overlaps_another_takes_only_what_is_new() -> None:
    store = make_store(memory=1_000_000)
    path = tokens(*([3] * 1024))
    remember_large(store, path, 200_000)
    store.pin("n", path[:768], "most")
    store.pin("n", path, "all")
    assert store.stats().memory.pinned_bytes == 800_000
    with pytest.raises(PathUnknown, match="1024 of 1025 tokens are stored"):
        store.pin("n", np.concatenate([path, tokens(4)]), "more than is there")


def test_what_is_pinned_outlives_everything_else() -> None:
    store = make_store(memory=8 * A_CHUNK)
    kept = tokens(*([3] * 500))
    remember(store, kept)
    made = store.pin("n", kept, "kept")
    for i in range(100):
        remember(store, tokens(*([10 + i] * 300)))
    assert recall(store, kept) == 500
    assert store.unpin(made.id[:6], None)
    for i in range(100):
        remember(store, tokens(*([200 + i] * 300)))
    assert recall(store, kept) == 0


def test_a_chunk_larger_than_the_budget_is_refused_and_counted() -> None:
    store = make_store(memory=2000)
    assert not remember(store, tokens(*([3] * 10)))
    stats = store.stats()
    assert (stats.refused_chunks_total, stats.memory.chunks, stats.memory.bytes) == (1, 0, 0)


def test_what_is_being_loaded_stays_where_it_is() -> None:
    store = make_store(memory=4 * A_CHUNK)
    path = tokens(*([3] * 256))
    remember(store, path)
    (part,) = store.match("n", path).parts
    fetch = store.fetch(part)
    for i in range(50):
        remember(store, tokens(*([10 + i] * 256)))
    assert store.match("n", path).length == 256
    store.close_fetch(fetch, 256)
    for i in range(50):
        remember(store, tokens(*([100 + i] * 256)))
    assert store.match("n", path).length == 0


def test_a_pin_is_found_by_the_beginning_of_its_id_in_its_own_namespace_only() -> None:
    store = make_store()
    path = tokens(*([3] * 100))
    remember(store, path, "a")
    made = store.pin("a", path, "mine")
    assert store.pins([namespace_id("b")]) == []
    assert not store.unpin(made.id, [namespace_id("b")])
    assert not store.unpin("", None)
    assert [pin.name for pin in store.pins([namespace_id("a")])] == ["mine"]
    assert store.unpin(made.id[:8], [namespace_id("a")])
    assert not store.unpin(made.id, None)


def test_namespaces_know_nothing_of_each_other() -> None:
    store = make_store()
    path = tokens(*range(10, 300))
    remember(store, path, "a")
    assert store.match("b", path).length == 0
    assert store.goes_on("b", path, 10)[0] == 0
    assert len(store.match_text("b", store.spell(path))) == 0
    assert store.paths([namespace_id("b")], 10).total == 0
    (info,) = store.paths([namespace_id("a")], 10).paths
    with pytest.raises(PathUnknown):
        store.find(info.id, [namespace_id("b")])
    assert store.clear(["b"]) == 0
    assert recall(store, path, "a") == len(path)
    assert store.clear(["a"]) > 0
    assert store.stats().memory.bytes == 0


def test_a_listing_shows_the_last_used_first_page_by_page() -> None:
    store = make_store()
    paths = [tokens(*([7] * 100), 100 + i, *([8] * 20)) for i in range(5)]
    for path in paths:
        remember(store, path)
    store.use("n", paths[2], text=True)
    first = store.paths(None, 2)
    assert (first.total, len(first.paths)) == (5, 2)
    assert first.paths[0].tokens == 121
    assert store.find(first.paths[0].id, None)[1].tolist() == paths[2].tolist()
    seen = list(first.paths)
    page = first
    while page.next:
        page = store.paths(None, 2, page.next)
        seen += page.paths
    assert len({info.id for info in seen}) == len(seen) == 5
    assert all(info.own_tokens == 21 and info.tiers == ("memory",) for info in seen)


def test_a_split_makes_no_room_out_of_what_it_splits() -> None:
    """Two halves take a little more than the whole: at a full budget something else has to go for it."""
    store = make_store(memory=4 * A_CHUNK)
    path = tokens(*([3] * 256))
    for i in range(3):
        remember(store, tokens(*([10 + i] * 256)))
    remember(store, path)
    other = np.concatenate([path[:100], tokens(*([4] * 20))])
    assert remember(store, other)
    assert recall(store, other) == 120
    assert recall(store, path) == 256
    assert store.stats().memory.bytes <= store.stats().memory.budget
