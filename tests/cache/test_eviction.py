"""Eviction by value against least recently used, on traces of what people and their tools do.

`python -m tests.cache.test_eviction` prints the table of docs/cache.md.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from onceread.cache import chunk as chunk_module
from onceread.cache.chunk import Chunk
from onceread.cache.cuts import Cutter, Tokens
from onceread.cache.disk import DiskTier
from onceread.cache.memory import MemoryTier
from onceread.cache.store import Store
from tests.cache.stores import END, FINGERPRINT, SPELLED, VOCAB

TOKEN_BYTES = 256  # so that blobs, not Python's objects, fill the budget, as in life
SEEDS = (101, 102, 103, 104)  # value.py's constants were chosen on others, 1 to 6
MARGIN = 0.01  # of the tokens that were known before


class Ask(NamedTuple):
    """A request: what is sent, and what there is when it was answered."""

    prompt: Tokens
    whole: Tokens


class Talk:
    """A conversation that is sent whole with every turn."""

    def __init__(self, rng: random.Random, system: int | Tokens) -> None:
        self._rng = rng
        self.text: Tokens = system if isinstance(system, np.ndarray) else message(rng, system)

    def turn(self, user: int, reply: int) -> Ask:
        prompt = np.concatenate([self.text, message(self._rng, user)])
        self.text = np.concatenate([prompt, message(self._rng, reply)])
        return Ask(prompt, self.text)


def message(rng: random.Random, n: int) -> Tokens:
    return np.asarray([*(rng.randrange(3, VOCAB) for _ in range(n - 1)), END], dtype=np.int32)


# -- the traces ----------------------------------------------------------------


def daily_conversation(rng: random.Random) -> Iterator[Ask]:
    """Three turns a day in one conversation; then 30 requests that nobody makes again."""
    talk = Talk(rng, 400)
    for _ in range(15):
        for _ in range(3):
            yield talk.turn(60, 120)
        for _ in range(30):
            yield Talk(rng, 50).turn(rng.randrange(300, 900), 80)


def characters_in_rotation(rng: random.Random) -> Iterator[Ask]:
    """Twelve characters of 1,000 tokens, each visited once in a round, in whatever order."""
    characters = [Talk(rng, 1000) for _ in range(12)]
    for _ in range(8):
        rng.shuffle(characters)
        for character in characters:
            yield character.turn(40, 80)


def sub_agents(rng: random.Random) -> Iterator[Ask]:
    """A main thread; between its steps two sub-agents work at a task each; titles and summaries besides."""
    main = Talk(rng, 1500)
    sub_system, title_system, summary_system = (message(rng, n) for n in (900, 120, 150))
    for _ in range(12):
        yield main.turn(rng.randrange(100, 300), rng.randrange(100, 300))
        yield Talk(rng, np.concatenate([title_system, main.text[-200:]])).turn(20, 12)
        agents = [Talk(rng, sub_system) for _ in range(2)]
        for _ in range(rng.randrange(3, 7)):
            for agent in agents:
                yield agent.turn(rng.randrange(150, 400), rng.randrange(50, 150))
        yield Talk(rng, np.concatenate([summary_system, main.text[1500:]])).turn(20, 60)


def one_long_document(rng: random.Random) -> Iterator[Ask]:
    """Eight chats, now this one and now that one; in between a document is read, asked about once, and left."""
    chats = [Talk(rng, 500) for _ in range(8)]
    for step in range(120):
        yield rng.choice(chats).turn(30, 60)
        if step in (40, 80):
            yield Talk(rng, 60).turn(8000, 150)


TRACES: dict[str, tuple[Callable[[random.Random], Iterator[Ask]], int]] = {
    "a daily conversation among one-off side requests": (daily_conversation, 10_000),
    "characters in rotation, more than fit": (characters_in_rotation, 10_000),
    "two sub-agents beside a main thread": (sub_agents, 10_000),
    "one long document read once among chats": (one_long_document, 12_000),
}
"""With the budget of each, in tokens."""


# -- playing them ----------------------------------------------------------------


class LeastRecentlyUsed(MemoryTier):
    """The same tier, leaves first as well, but all it asks is when a chunk was last used."""

    def touch(self, chunk: Chunk) -> None:
        chunk.priority = chunk.last_used
        self._push(chunk)


def cut(whole: bytes, n: int) -> tuple[bytes, bytes]:
    return whole[: n * TOKEN_BYTES], whole[n * TOKEN_BYTES :]


def open_store(memory: int, disk: DiskTier | None = None) -> Store:
    return Store(
        fingerprint=FINGERPRINT,
        label="test model",
        spelled=SPELLED,
        cutter=Cutter([END]),
        cut=cut,
        memory_bytes=memory,
        disk=disk,
    )


class Found(NamedTuple):
    """Prompt tokens of a whole trace."""

    asked: int
    known: int  # that an earlier request had in front
    found: int


def play(trace: Iterator[Ask], store: Store) -> Found:
    earlier: list[Tokens] = []
    asked = known = found = 0
    for ask in trace:
        wanted = ask.prompt[:-1]  # the last one is evaluated in any case, for its logits
        asked += len(ask.prompt)
        known += max((common(wanted, path) for path in earlier if path[0] == wanted[0]), default=0)
        found += load(store, wanted)
        store.use("n", ask.prompt, text=True)
        while (gap := store.gap("n", ask.whole, final=True)) is not None:
            if not store.put("n", ask.whole, *gap, bytes((gap[1] - gap[0]) * TOKEN_BYTES)):
                break
        settle(store)
        assert store.stats().memory.bytes <= store.stats().memory.budget
        earlier.append(ask.whole)
    return Found(asked, known, found)


def load(store: Store, path: Tokens) -> int:
    """As the engine does: one chunk after another, until one is not to be had."""
    length = 0
    for part in store.match("n", path).parts:
        fetch = store.fetch(part)
        settle(store)
        assert fetch.done
        got = part.end - length if fetch.blob is not None else 0
        store.close_fetch(fetch, got)
        if not got:
            break
        length = part.end
    return length


def settle(store: Store) -> None:
    """The disk's threads have done what they had to: its clock is not the trace's."""
    if store._disk is not None:
        assert store._disk._reader.wait_idle(10)
        assert store._disk._writer.do(store._disk._flush_touched, 10)


def common(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def in_memory(name: str, seed: int, *, by_value: bool) -> Found:
    trace, budget = TRACES[name]
    store = open_store(budget * TOKEN_BYTES)
    if not by_value:
        store._memory = store._holdings.memory = LeastRecentlyUsed(budget * TOKEN_BYTES, store._tree)
    return play(trace(random.Random(seed)), store)


def on_disk(name: str, seed: int, folder: Path, *, by_value: bool) -> Found:
    """With next to nothing in RAM."""
    trace, budget = TRACES[name]
    worth = chunk_module.value
    if not by_value:  # of equal worth, the disk tier gives up the one that was used least recently
        chunk_module.value = lambda *_: 0.0
    store = open_store(1 << 20, DiskTier(folder, budget * TOKEN_BYTES, FINGERPRINT, "test model"))
    try:
        return play(trace(random.Random(seed)), store)
    finally:
        store.close()
        chunk_module.value = worth


# -- the tests -------------------------------------------------------------------


def total(runs: Iterable[Found]) -> Found:
    """Of all seeds together: a single short trace is luck, one way or the other."""
    return Found(*(sum(numbers) for numbers in zip(*runs, strict=True)))


@pytest.mark.parametrize("name", TRACES)
def test_in_ram_value_finds_more_than_least_recently_used(name: str) -> None:
    plain, ours = (
        total(in_memory(name, seed, by_value=by_value) for seed in SEEDS) for by_value in (False, True)
    )
    assert ours.known == plain.known
    assert ours.found >= plain.found + MARGIN * ours.known


def test_on_disk_value_finds_more_than_least_recently_used(tmp_path: Path) -> None:
    name = "one long document read once among chats"
    plain = on_disk(name, SEEDS[0], tmp_path / "plain", by_value=False)
    ours = on_disk(name, SEEDS[0], tmp_path / "ours", by_value=True)
    assert ours.known == plain.known
    assert ours.found >= plain.found + MARGIN * ours.known


def table() -> Iterator[str]:
    yield "| trace | known before | RAM, LRU | RAM, by value | disk, LRU | disk, by value |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name in TRACES:
        runs = [
            total(in_memory(name, seed, by_value=by_value) for seed in SEEDS) for by_value in (False, True)
        ]
        for by_value in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                each = (on_disk(name, seed, Path(folder, str(seed)), by_value=by_value) for seed in SEEDS)
                runs.append(total(each))
        shares = " | ".join(f"{run.found / run.known:.1%}" for run in runs)
        yield f"| {name} | {runs[0].known:,} | {shares} |"


if __name__ == "__main__":
    print(*table(), sep="\n")
