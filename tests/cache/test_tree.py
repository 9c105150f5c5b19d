"""The chunk tree against a naive twin: lists of tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceread.cache.contract import CHUNK
from onceread.cache.cuts import MIN_CHUNK, Cutter
from tests.cache.stores import END, SPELLED, make_store, recall, remember, tokens

# Few different tokens, and runs that repeat, so that paths share and part at every kind of place.
RUNS = st.lists(
    st.tuples(st.sampled_from([3, 4, 5, END]), st.integers(1, 90)).map(lambda run: [run[0]] * run[1]),
    min_size=1,
    max_size=8,
).map(lambda runs: tokens(*itertools.chain.from_iterable(runs)))


def common(a: np.ndarray, b: np.ndarray) -> int:
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


@settings(max_examples=60, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=8), st.lists(RUNS, min_size=1, max_size=4))
def test_matches_are_exact_to_the_token_and_equal_prefixes_are_stored_once(paths: list, others: list) -> None:
    store = make_store()
    for path in paths:
        assert remember(store, path)
        assert recall(store, path) == len(path)
    for prompt in paths + others:
        wanted = max(common(prompt, path) for path in paths)
        assert store.match("n", prompt).length == wanted
        assert recall(store, prompt) == wanted
    distinct = {tuple(path[: i + 1].tolist()) for path in paths for i in range(len(path))}
    assert store.stats().memory.tokens == len(distinct)


@settings(max_examples=40, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=6), st.data())
def test_a_path_that_grows_while_it_is_remembered_is_stored_once(paths: list, data: st.DataObject) -> None:
    store = make_store()
    for path in paths:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(path)), max_size=4)))
        for end in cuts:
            remember(store, path[:end], final=data.draw(st.booleans()))
        remember(store, path)
    distinct = {tuple(path[: i + 1].tolist()) for path in paths for i in range(len(path))}
    assert store.stats().memory.tokens == len(distinct)
    assert all(recall(store, path) == len(path) for path in paths)


@given(RUNS, st.booleans())
def test_a_chunk_ends_after_256_tokens_or_with_a_message_once_it_holds_64(
    path: np.ndarray, final: bool
) -> None:
    cutter = Cutter([END])
    start = 0
    while (end := cutter.end(path, start, final=final)) is not None:
        inner = path[start + MIN_CHUNK - 1 : end - 1]
        assert END not in inner
        assert end - start == CHUNK or (path[end - 1] == END and end - start >= MIN_CHUNK) or final
        assert 0 < end - start <= CHUNK
        start = end
    if final:
        assert start == len(path)
    else:
        assert len(path) - start < CHUNK


def test_the_path_whose_text_agrees_longest_is_found_whatever_its_tokens() -> None:
    store = make_store()
    long, short = tokens(*range(10, 200)), tokens(*range(10, 50), *range(500, 600))
    remember(store, long)
    remember(store, short)
    text = store.spell(long[:150]) + b" something else"
    path = store.match_text("n", text)
    assert len(path) >= 150
    assert path[:150].tolist() == long[:150].tolist()
    assert len(store.match_text("n", b"nothing of the kind")) == 0
    assert len(store.match_text("other", text)) == 0


def test_what_was_given_as_tokens_is_not_matched_as_text() -> None:
    store = make_store()
    path = tokens(*range(10, 200))
    gap = store.gap("n", path, final=True)
    assert gap is not None
    store.put("n", path, *gap, bytes(4 * (gap[1] - gap[0])), text=False)
    assert len(store.match_text("n", store.spell(path))) == 0
    assert store.match("n", path).length == len(path)
    store.use("n", path, text=True)
    assert len(store.match_text("n", store.spell(path))) == len(path)


def test_a_split_keeps_every_descendant_and_changes_none() -> None:
    store = make_store()
    trunk = tokens(*([7] * 100))
    for i in range(300):
        remember(store, np.concatenate([trunk, tokens(100 + i, *([8] * 20))]))
    before = store.stats()
    remember(store, tokens(*([7] * 40), 9, 9))
    after = store.stats()
    assert after.split_chunks_total == before.split_chunks_total + 1
    assert after.memory.chunks == before.memory.chunks + 2
    assert after.memory.tokens == before.memory.tokens + 2
    assert all(
        recall(store, np.concatenate([trunk, tokens(100 + i, *([8] * 20))])) == 121 for i in range(300)
    )


@pytest.mark.parametrize("n", [1, 63, 64, 255, 256, 257, 512, 600])
def test_a_prefix_of_any_length_hits_to_the_token(n: int) -> None:
    store = make_store()
    path = tokens(*(10 + np.arange(600) % 500))
    remember(store, path)
    assert recall(store, path[:n]) == n
    edited = path[:n].copy()
    edited[-1] = 900
    assert recall(store, edited) == n - 1


def test_a_million_tokens_take_less_than_100_bytes_of_python_each() -> None:
    import tracemalloc

    rng = np.random.default_rng(1)
    n = 100_000  # a tenth, in chats of 2,000 tokens with a message about every 120
    tracemalloc.start()
    store = make_store()
    empty = tracemalloc.get_traced_memory()[0]
    blobs = 0
    for _ in range(n // 2000):
        path = rng.integers(10, VOCAB_SIZE, 2000).astype(np.int32)
        path[rng.random(2000) < 1 / 120] = END
        remember(store, path)
    used = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.stop()
    stats = store.stats().memory
    blobs = 4 * stats.tokens
    assert (used - blobs) / stats.tokens < 100


VOCAB_SIZE = len(SPELLED)
