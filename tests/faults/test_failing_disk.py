"""A disk that is full, read-only, gone or slow: the store goes on from RAM, says so once, and comes back by itself."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cache.stores import END, make_store, recall, remember, tokens

from onceread.cache import chunkfile, disk_side
from onceread.cache.disk import DiskTier
from onceread.cache.errors import DiskUnusable
from onceread.cache.store import Store

SOON = 20.0


def talk(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([np.append(rng.integers(10, 1000, 99), END) for _ in range(4)]).astype(np.int32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """With something written, and a pause after a failure that a test need not wait out."""
    monkeypatch.setattr(disk_side, "_RETRY", 0.05)
    made = make_store(directory=tmp_path / "cache")
    assert remember(made, talk(0))
    assert made.wait_written(SOON)
    yield made
    made.close()


def until(true: Callable[[], bool]) -> bool:
    """Does it become true soon? What happens on another thread, and tells nobody, is polled for."""
    end = time.monotonic() + SOON
    while not true():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.005)
    return True


def state(store: Store) -> str:
    return store.stats().disk.state


def only_on_disk(store: Store) -> None:
    with store._lock:
        for chunk in list(store._tree):
            if chunk.blob is not None and chunk.file_bytes:
                store._memory.drop(chunk)


def found_after_restart(store: Store, folder: Path, *paths: np.ndarray) -> bool:
    assert store.wait_written(SOON)
    again = make_store(directory=folder)
    try:
        return all(recall(again, path) == len(path) for path in paths)
    finally:
        again.close()


def failing(error: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    return fail


WAYS = {
    "full when a file is written": (chunkfile, "_write_all", errno.ENOSPC, "No space left"),
    "read-only when a file is made": (chunkfile, "write", errno.EROFS, "Read-only file system"),
    "broken when a file is written": (chunkfile, "_write_all", errno.EIO, "Input/output error"),
    "over its quota when a file is named": (Path, "replace", errno.EDQUOT, "quota exceeded"),
    "closed to us": (chunkfile, "write", errno.EACCES, "Permission denied"),
}


@pytest.mark.parametrize(("where", "what", "error", "words"), WAYS.values(), ids=WAYS.keys())
def test_a_disk_that_is(
    store: Store,
    tmp_path: Path,
    where: object,
    what: str,
    error: int,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, what, failing(error))
        for seed in range(1, 6):
            assert remember(store, talk(seed))
            assert store.wait_written(SOON)
        assert state(store).startswith("failed: ")
        assert words in state(store)
        assert all(recall(store, talk(seed)) == 400 for seed in range(6)), "it goes on from RAM"
        # The retries in between must not add to the log.
        assert until(lambda: not store.stats().unwritten_bytes)
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(told) == 1
        assert "the server goes on from RAM" in told[0].getMessage()
        assert not list(tmp_path.glob("cache/v1/tmp/*.part"))
    assert until(lambda: state(store) == "ok"), "it comes back by itself"
    assert found_after_restart(store, tmp_path / "cache", *(talk(seed) for seed in range(6)))
    assert [record.getMessage() for record in caplog.records[1:]] == ["the disk cache works again"]


def test_while_the_disk_is_full_what_is_on_it_is_found(store: Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunkfile, "_write_all", failing(errno.ENOSPC))
        remember(store, talk(1))
        assert store.wait_written(SOON)
        only_on_disk(store)
        assert recall(store, talk(0)) == 400


def test_with_a_failed_disk_ram_keeps_to_its_budget_and_takes_new_things_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(memory=60_000, directory=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunkfile, "_write_all", failing(errno.ENOSPC))
        for seed in range(40):
            remember(store, talk(seed))
            assert store.wait_written(SOON)
            assert store.stats().memory.bytes <= 60_000
        assert recall(store, talk(39)) == 400
    store.close()


def test_a_directory_that_is_removed_and_put_back(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    store.refresh(SOON)
    assert "is not a cache directory" in state(store)
    for seed in range(1, 4):
        assert remember(store, talk(seed))
        store.refresh()
    assert all(recall(store, talk(seed)) == 400 for seed in range(4))
    assert len(caplog.records) == 1
    (tmp_path / "elsewhere").rename(tmp_path / "cache")
    assert until(lambda: state(store) == "ok")
    assert found_after_restart(store, tmp_path / "cache", *(talk(seed) for seed in range(4)))


def test_a_directory_that_is_gone_makes_what_lay_there_alone_a_miss_and_ram_takes_it_in(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    only_on_disk(store)
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    store.refresh(SOON)
    assert recall(store, talk(0)) == 0
    assert len(caplog.records) <= 2, "that the disk is off, and the first chunk that was missed"
    assert remember(store, talk(0))
    assert recall(store, talk(0)) == 400


def test_a_disk_that_hangs_is_a_miss_after_the_time_given_and_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, comes_back = threading.Event(), threading.Event()
    pread = chunkfile._pread

    def hang(*args: object) -> bytes:
        begun.set()
        assert comes_back.wait(SOON)
        return pread(*args)  # type: ignore[arg-type]

    only_on_disk(store)
    monkeypatch.setattr(chunkfile, "_pread", hang)
    part = store.match("n", talk(0)).parts[0]
    fetch = store.fetch(part)
    assert begun.wait(SOON)
    assert not store.stuck(1000)
    assert not fetch.done
    assert until(lambda: store.stuck(0.01))
    store.close_fetch(fetch, 0)
    assert state(store) == "failed: a chunk was not read within 0.01 s"
    # Nothing is read meanwhile, so nobody waits; what was read before is in RAM, and new things are kept.
    other = store.fetch(store.match("n", talk(0)).parts[1])
    assert other.done
    assert other.blob is None
    store.close_fetch(other, 0)
    assert remember(store, talk(1))
    assert recall(store, talk(1)) == 400
    assert store.wait_written(SOON)
    assert state(store).startswith("failed"), "that it can be written to does not mean that it can be read"
    assert len(caplog.records) == 1
    comes_back.set()
    assert until(lambda: state(store) == "ok")
    assert recall(store, talk(0)) == 400
    assert recall(store, talk(1)) == 400
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_disk_that_hangs_when_it_is_written_to_makes_nobody_wait(store: Store, tmp_path: Path) -> None:
    begun, comes_back = threading.Event(), threading.Event()
    write_all = chunkfile._write_all

    def hang(*args: object) -> None:
        begun.set()
        assert comes_back.wait(SOON)
        write_all(*args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunkfile, "_write_all", hang)
        for seed in range(1, 5):
            assert remember(store, talk(seed))
        assert begun.wait(SOON)
        stats = store.stats()
        assert stats.unwritten_bytes == 4 * 400 * 4
        assert stats.oldest_unwritten_s >= 0
        assert all(recall(store, talk(seed)) == 400 for seed in range(5))
        comes_back.set()
        assert store.wait_written(SOON)
    assert store.stats().unwritten_bytes == 0
    assert found_after_restart(store, tmp_path / "cache", *(talk(seed) for seed in range(5)))


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.cache.stores import make_store, recall, remember
from tests.faults.test_failing_disk import talk

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = make_store(directory=Path(sys.argv[1]))
assert remember(store, talk(1)) and store.wait_written(20)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
assert remember(store, talk(2)) and store.wait_written(20)
state = store.stats().disk.state
assert state.startswith("failed: ") and "can't be used" in state, state
assert recall(store, talk(2)) == recall(store, talk(1)) == 400
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.close()
"""


def test_no_file_may_grow_not_even_the_index(tmp_path: Path) -> None:
    """The real thing, in a process of its own: the system refuses every write."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    store = make_store(directory=tmp_path)
    assert recall(store, talk(1)) == 400
    store.close()


def test_a_directory_that_can_t_be_opened_again_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    with pytest.raises(DiskUnusable, match="is not a directory"):
        DiskTier(tmp_path / "file", 1 << 30, bytes(32), "test model")


def test_closing_a_store_whose_disk_has_failed_ends(store: Store, tmp_path: Path) -> None:
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    remember(store, tokens(*range(10, 200)))
    assert store.wait_written(SOON)
    store.close()
    assert not any(thread.name.startswith("onceread-cache") for thread in threading.enumerate())
