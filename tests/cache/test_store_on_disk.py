"""The store over a directory: what is written is found again, by this process, the next one, and others beside it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from onceread.cache import chunkfile
from onceread.cache.cuts import Cutter
from onceread.cache.disk import DiskTier
from onceread.cache.errors import PinRefused
from onceread.cache.store import Store
from tests.cache.stores import END, FINGERPRINT, PLENTY, SPELLED, cut, make_store, recall, remember, tokens

TRUNK = tokens(*([7] * 99), END)
SOON = 20.0


def branch(i: int) -> np.ndarray:
    return np.concatenate([TRUNK, tokens(100 + i, *([8] * 20))])


def talk(seed: int, messages: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [np.append(rng.integers(10, 1000, rng.integers(20, 150)), END) for _ in range(messages)]
    return np.concatenate(parts).astype(np.int32)


@contextmanager
def opened(directory: Path, **options: int) -> Iterator[Store]:
    store = make_store(directory=directory, **options)
    try:
        yield store
    finally:
        store.close()


def keep(store: Store, *paths: np.ndarray) -> None:
    for path in paths:
        assert remember(store, path)
    assert store.wait_written(SOON)


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("v1/chunks/*/*")}


def file_of(directory: Path, store: Store, path: np.ndarray) -> Path:
    """Of the last chunk of a path."""
    key = store.match("n", path).parts[-1].chunk.key
    return directory / "v1" / "chunks" / key.name.hex()[:2] / f"{key.name.hex()}-{key.start}.chunk"


def only_on_disk(store: Store) -> None:
    """As after a restart, but for the process."""
    with store._lock:
        for chunk in list(store._tree):
            if chunk.blob is not None and chunk.file_bytes:
                store._memory.drop(chunk)


def without_message_ends(directory: Path) -> Store:
    """A store that cuts after 256 tokens only, as raw completions do."""
    return Store(
        fingerprint=FINGERPRINT,
        label="test model",
        spelled=SPELLED,
        cutter=Cutter([]),
        cut=cut,
        memory_bytes=PLENTY,
        disk=DiskTier(directory, PLENTY, FINGERPRINT, "test model"),
    )


# -- coming back -----------------------------------------------------------------


def test_after_a_restart_everything_that_was_written_is_found(tmp_path: Path) -> None:
    paths = [talk(seed) for seed in range(20)] + [branch(i) for i in range(20)]
    with opened(tmp_path) as store:
        for path in paths:
            assert remember(store, path)  # close() writes the rest
    with opened(tmp_path) as store:
        assert [recall(store, path) for path in paths] == [len(path) for path in paths]
        assert store.stats().disk.hit_tokens_total > 0
        assert store.stats().exported_chunks_total == 0


def test_what_does_not_fit_into_ram_comes_from_disk(tmp_path: Path) -> None:
    paths = [talk(seed) for seed in range(20)]
    with opened(tmp_path, memory=40_000) as store:
        for path in paths:
            keep(store, path)
        assert store.stats().memory.evictions_total > 0
        assert [recall(store, path) for path in paths] == [len(path) for path in paths]
        assert store.stats().memory.bytes <= 40_000


def test_counts_of_use_survive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keep(store, branch(1), branch(2))
        for _ in range(5):
            store.use("n", branch(1), text=True)
    with opened(tmp_path) as store:
        hits = {info.tail[:6]: info.hits for info in store.paths(None, 10).paths}
        assert sorted(hits.values()) == [1, 6] or sorted(i.hits for i in store.paths(None, 10).paths) == [
            1,
            6,
        ]


def test_what_was_given_as_tokens_is_no_text_after_a_restart_either(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        gap = store.gap("n", TRUNK, final=True)
        assert gap == (0, 100)
        store.put("n", TRUNK, 0, 100, bytes(400), text=False)
    with opened(tmp_path) as store:
        assert len(store.match_text("n", store.spell(TRUNK))) == 0
        assert store.match("n", TRUNK).length == 100


# -- growing and splitting -------------------------------------------------------


def test_a_chunk_that_grows_leaves_no_shorter_file_behind(tmp_path: Path) -> None:
    path = tokens(*([7] * 250))
    with opened(tmp_path) as store:
        for end in (10, 80, 200, 250):
            keep(store, path[:end])
        assert len(files(tmp_path)) == 1
        for end in (20, 90, 210):  # and nothing that is known already is written
            keep(store, path[:end])
        assert len(files(tmp_path)) == 1
    with opened(tmp_path) as store:
        assert recall(store, path) == 250


def test_a_split_with_a_thousand_descendants_writes_two_files_and_removes_one(tmp_path: Path) -> None:
    children = [np.concatenate([TRUNK, tokens(100 + i, *([8] * 68), END)]) for i in range(500)]
    grandchildren = [np.concatenate([child, tokens(*([9] * 20))]) for child in children]
    with opened(tmp_path) as store:
        keep(store, *children, *grandchildren)
        trunk = store.match("n", TRUNK).parts[0].chunk
        before = files(tmp_path)
        other = np.append(TRUNK[:40], 5).astype(np.int32)
        keep(store, other)
        after = files(tmp_path)
    assert len(before) == 1 + 1000
    assert len(before - after) == 1
    assert len(after - before) == 2 + 1, "the halves, and the path for which it was split"
    assert f"{trunk.key.name.hex()}-0.chunk" in before - after
    with opened(tmp_path) as store:
        assert all(recall(store, path) == len(path) for path in grandchildren[::50])
        assert recall(store, other) == 41


@pytest.mark.parametrize("when", ["in ram and on disk", "only on disk", "not written yet", "being written"])
def test_a_chunk_is_split_that_is(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = np.concatenate([TRUNK[:40], tokens(*([9] * 30))])
    begun, go = threading.Event(), threading.Event()
    go.set()
    write = chunkfile.write

    def slowly(*args: object, **options: object) -> None:
        begun.set()
        assert go.wait(SOON)
        write(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(chunkfile, "write", slowly)
    with opened(tmp_path) as store:
        if when == "not written yet":
            go.clear()
            assert remember(store, tokens(*([5] * 20)))  # holds the writer up
            assert begun.wait(SOON)
            assert remember(store, branch(1))
        elif when == "being written":
            go.clear()
            assert remember(store, branch(1))
            assert begun.wait(SOON)
        else:
            keep(store, branch(1))
            if when == "only on disk":
                only_on_disk(store)
        assert remember(store, other)
        go.set()
        assert store.wait_written(SOON)
        assert store.stats().split_chunks_total == 1
        expected = (
            4 if when != "not written yet" else 5
        )  # head, tail, its child, the new one (and what held up)
        assert len(files(tmp_path)) == expected
        assert recall(store, branch(1)) == 121
        assert recall(store, other) == 70
    with opened(tmp_path) as store:
        assert recall(store, branch(1)) == 121
        assert recall(store, other) == 70


def test_a_half_is_split_again_before_it_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tokens(*range(10, 210))
    with opened(tmp_path) as store:
        keep(store, path)
        assert store._disk is not None
        held = threading.Event()
        store._disk._writer.add(lambda: held.wait(SOON))
        only_on_disk(store)
        for at in (150, 60, 100, 175):
            assert remember(store, np.concatenate([path[:at], tokens(5, 5, 5)]))
            assert recall(store, path) == 200
        held.set()
        assert store.wait_written(SOON)
        assert len(files(tmp_path)) == 5 + 4
    with opened(tmp_path) as store:
        assert recall(store, path) == 200


# -- more than one process -------------------------------------------------------


def test_two_that_cut_differently_find_all_that_the_other_wrote(tmp_path: Path) -> None:
    chat, raw = make_store(directory=tmp_path), without_message_ends(tmp_path)
    for seed in range(6):
        writer, reader = (chat, raw) if seed % 2 else (raw, chat)
        path = talk(seed)
        keep(writer, path)
        assert reader.match("n", path).length == 0
        reader.refresh(SOON)
        assert recall(reader, path) == len(path)
        longer = np.concatenate([path, talk(seed + 100)])
        keep(reader, longer)
        writer.refresh(SOON)
        assert recall(writer, longer) == len(longer)
        assert recall(writer, path[:99]) == 99
    for store in (chat, raw):
        store.close()
    with opened(tmp_path) as store:
        assert all(recall(store, talk(seed)) == len(talk(seed)) for seed in range(6))


OTHER_PROCESS = """
import sys
from pathlib import Path
from tests.cache.test_store_on_disk import keep, recall, talk, without_message_ends

store = without_message_ends(Path(sys.argv[1]))
assert recall(store, talk(1)) == len(talk(1))
keep(store, talk(2))
print("written", flush=True)
sys.stdin.readline()
store.refresh(20)
assert recall(store, talk(3)) == len(talk(3))
store.close()
print("found", flush=True)
"""


def test_two_processes_that_cut_differently_find_all_that_the_other_wrote(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keep(store, talk(1))
        command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            store.refresh(SOON)
            assert recall(store, talk(2)) == len(talk(2))
            keep(store, talk(3))
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "found\n"
            assert process.wait(SOON) == 0


def test_what_the_other_evicted_is_a_miss_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        keep(store, TRUNK)
        only_on_disk(store)
        with opened(tmp_path) as other:
            other.clear(["n"])
        assert recall(store, TRUNK) == 0
        assert len(caplog.records) == 1
        assert "a chunk of 100 tokens is read again" in caplog.text
        assert store.stats().disk.damaged_total == 0
        keep(store, TRUNK)
        only_on_disk(store)
        assert recall(store, TRUNK) == 100


def test_what_the_other_evicted_is_known_after_a_refresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        keep(store, TRUNK)
        only_on_disk(store)
        with opened(tmp_path) as other:
            other.clear(["n"])
        store.refresh(SOON)
        assert store.match("n", TRUNK).length == 0
        assert not caplog.records


# -- damage ----------------------------------------------------------------------


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def future(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] += 1
    path.write_bytes(content)


def swapped(path: Path) -> None:
    """With the file of the trunk, which is read first."""
    other = next(p for p in path.parents[1].glob("*/*-0.chunk"))
    content = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(content)


def of_another_model(path: Path) -> None:
    elsewhere = path.parents[3] / "elsewhere"
    store = make_store(directory=elsewhere, fingerprint=b"\1" * 32)
    keep(store, TRUNK)
    store.close()
    path.write_bytes(next(elsewhere.glob("v1/chunks/*/*")).read_bytes())


def link(path: Path) -> None:
    path.rename(path.parents[3] / "target")
    path.symlink_to(path.parents[3] / "target")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], None]] = [
    truncated,
    flipped,
    zeros,
    future,
    swapped,
    of_another_model,
    link,
    folder,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.replace("_", " "))
def test_a_damaged_file_is_a_miss_and_one_line_and_is_written_again(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = branch(1)
    with opened(tmp_path / "cache") as store:
        keep(store, path)
        only_on_disk(store)
        damage(file_of(tmp_path / "cache", store, path))
        caplog.clear()
        assert recall(store, path) == (0 if damage is swapped else 100)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "read again" in warnings[0].getMessage()
        assert "\n" not in warnings[0].getMessage()
        assert store.stats().disk.damaged_total == 1
        keep(store, path)
        only_on_disk(store)
        if damage is swapped:  # the second of the two is found out by now
            recall(store, path)
            keep(store, path)
            only_on_disk(store)
        assert recall(store, path) == 121
    with opened(tmp_path / "cache") as store:
        assert recall(store, path) == 121


def test_a_file_that_is_truncated_while_it_is_loaded_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        keep(store, branch(1))
        only_on_disk(store)
        victim = file_of(tmp_path, store, branch(1))
        read_head = chunkfile._read_head

        def then_truncate(fd: int, path: Path) -> object:
            head = read_head(fd, path)
            if path == victim:
                os.truncate(path, path.stat().st_size - 50)
            return head

        monkeypatch.setattr(chunkfile, "_read_head", then_truncate)
        assert recall(store, branch(1)) == 100
        assert "truncated while it was read" in caplog.text
        monkeypatch.undo()
        for _ in range(2):  # it may be found bad once more: to its reader it was another file than before
            keep(store, branch(1))
            only_on_disk(store)
            found = recall(store, branch(1))
        assert found == 121


def test_a_lost_index_loses_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keep(store, talk(1), branch(1))
    for path in (tmp_path / "v1").glob("index.sqlite*"):
        path.unlink()
    with opened(tmp_path) as store:
        assert recall(store, talk(1)) == len(talk(1))
        assert recall(store, branch(1)) == 121


def test_an_index_that_is_deleted_under_a_running_store_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keep(store, talk(1))
        for path in (tmp_path / "v1").glob("index.sqlite*"):
            path.unlink()
        keep(store, talk(2))
        store.refresh(SOON)
        only_on_disk(store)
        assert recall(store, talk(1)) == len(talk(1))
        assert recall(store, talk(2)) == len(talk(2))
    with opened(tmp_path) as store:
        assert recall(store, talk(1)) == len(talk(1))
        assert recall(store, talk(2)) == len(talk(2))


# -- pins and budgets ------------------------------------------------------------


@pytest.mark.parametrize("index", ["with its index", "with its index lost"])
def test_a_pin_holds_after_a_restart(tmp_path: Path, index: str) -> None:
    budget = 20 * 4096
    kept = talk(1, messages=4)
    with opened(tmp_path, disk=budget) as store:
        keep(store, kept)
        store.pin("n", kept, "kept")
    if index == "with its index lost":
        for path in (tmp_path / "v1").glob("index.sqlite*"):
            path.unlink()
    with opened(tmp_path, disk=budget, memory=20_000) as store:
        (pin,) = store.pins(None)
        assert (pin.name, pin.n) == ("kept", len(kept))
        assert pin.bytes > 0
        for seed in range(10, 40):
            remember(store, talk(seed))
            store.wait_written(SOON)
        assert store.stats().disk.evictions_total > 0
        assert recall(store, kept) == len(kept)
    with opened(tmp_path, disk=budget) as store:
        assert recall(store, kept) == len(kept)
        assert store.unpin(pin.id, None)
        assert store.pins(None) == []


def test_a_pin_of_the_other_is_known_after_a_refresh(tmp_path: Path) -> None:
    with opened(tmp_path) as store, opened(tmp_path) as other:
        keep(other, TRUNK)
        other.pin("n", TRUNK, "theirs")
        store.refresh(SOON)
        assert [pin.name for pin in store.pins(None)] == ["theirs"]


def test_a_pin_over_the_share_for_pins_is_refused_with_the_figures(tmp_path: Path) -> None:
    long = np.tile(np.arange(10, 910), 4)[:2560].astype(np.int32)
    with opened(tmp_path, disk=10 * 4096) as store:
        keep(store, long)  # a block for each chunk
        with pytest.raises(
            PinRefused, match=r"40960 bytes on disk beside 0 bytes .* 40960 bytes at most 36864"
        ):
            store.pin("n", long, "too large")
        assert store.pins(None) == []
        store.refresh(SOON)
        assert store.stats().disk.pinned_bytes == 0
        store.pin("n", long[:2304], "fits")
        store.refresh(SOON)
        assert store.stats().disk.pinned_bytes == 36864


def test_a_pin_that_found_no_room_on_disk_is_refused_with_the_figures(tmp_path: Path) -> None:
    long = np.tile(np.arange(10, 910), 4)[:2560].astype(np.int32)
    with opened(tmp_path, disk=10 * 4096) as store:
        keep(store, long[:2304])
        assert store.put("n", long, 2304, 2560, bytes(9000))  # three blocks
        assert store.wait_written(SOON)
        with pytest.raises(PinRefused, match=r"45864 bytes and does not fit .* the budget is 40960 bytes"):
            store.pin("n", long, "too large")
        assert store.pins(None) == []
        store.refresh(SOON)
        assert store.stats().disk.pinned_bytes == 0


def test_what_was_evicted_from_disk_and_is_in_ram_is_written_again_before_what_continues_it(
    tmp_path: Path,
) -> None:
    path = talk(1)
    with opened(tmp_path) as store:
        keep(store, path)
        with opened(tmp_path) as other:
            other.clear(["n"])
        store.refresh(SOON)
        assert recall(store, path) == len(path), "it is in RAM still"
        keep(store, np.concatenate([path, talk(2)]))
    with opened(tmp_path) as store:
        assert recall(store, np.concatenate([path, talk(2)])) == len(path) + len(talk(2))


def test_the_budget_holds_at_every_moment_somebody_looks(tmp_path: Path) -> None:
    budget = 30 * 4096
    seen: list[int] = []
    over = threading.Event()

    def scan() -> dict[int, int]:
        """By inode: a file may be given its name while somebody looks."""
        sizes = {}
        for path in tmp_path.glob("v1/*/**/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix in (".chunk", ".part"):
                    sizes[status.st_ino] = status.st_blocks * 512
        return sizes

    def look() -> None:
        before = scan()
        while not over.is_set():
            now = scan()
            if now == before:  # else what was seen may never have been there together
                seen.append(sum(now.values()))
            before = now

    looker = threading.Thread(target=look)
    with opened(tmp_path, disk=budget, memory=200_000) as store:
        looker.start()
        try:
            for seed in range(60):
                remember(store, talk(seed))
            assert store.wait_written(SOON)
            stats = store.stats().disk
        finally:
            over.set()
            looker.join()
        seen.append(sum(scan().values()))  # at rest: how often the looker got a turn is luck
    assert stats.evictions_total > 0
    assert stats.bytes <= budget
    assert seen[-1] > budget // 2, "the budget was never near"
    assert max(seen) <= budget
