"""A disk that fails, or changes under the feet of an open tier."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceread.cache.disk import DiskTier
from onceread.cache.errors import ChunkDamaged, ChunkGone, DiskUnusable
from tests.cache.disks import (
    BLOCK,
    ONCE,
    PLENTY,
    blob_of,
    file_of,
    keys,
    open_tier,
    put,
    single,
    sound,
)


@pytest.fixture
def tier(tmp_path: Path):
    tier = open_tier(tmp_path / "cache")
    yield tier
    tier.close()


def test_a_write_that_fails_leaves_neither_row_nor_file_nor_place(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from onceread.cache.errors import DiskUnusable
from tests.cache.disks import *
tier = open_tier(Path(sys.argv[1]), budget=60 * 4096)
put(tier, single(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
try: put(tier, single(2), size=200_000)
except DiskUnusable as error: print(error)
assert tier._database.look(lambda index: (index.total(), index.reservations())) == (4096, [])
put(tier, single(3))
tier.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    tier = open_tier(tmp_path)
    assert keys(tier.rows()) == {single(1).key, single(3).key}
    assert not list((tmp_path / "v1" / "tmp").glob("*.part"))
    assert sound(tier)
    tier.close()


def test_what_went_for_a_write_that_failed_is_told_by_refresh(tmp_path: Path, monkeypatch) -> None:
    from onceread.cache import chunkfile

    tier = open_tier(tmp_path, budget=2 * BLOCK)
    put(tier, single(1), 1.0)
    put(tier, single(2), 2.0)
    assert not tier.refresh()

    def fail(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(chunkfile, "write", fail)
        with pytest.raises(DiskUnusable, match="No space left"):
            put(tier, single(3))
    changes = tier.refresh()
    assert (changes.added, changes.removed) == ([], [single(1).key])
    assert not tier.refresh()
    assert put(tier, single(4)).evicted == []
    tier.close()


def test_a_directory_that_was_removed_is_unusable_and_reads_miss(tmp_path: Path) -> None:
    import shutil

    tier = open_tier(tmp_path / "cache")
    put(tier, single(1))
    shutil.rmtree(tmp_path / "cache")
    for call in (
        lambda: put(tier, single(2)),
        tier.rows,
        tier.refresh,
        lambda: tier.touch([(single(1).key, ONCE)]),
    ):
        with pytest.raises(DiskUnusable, match="missing"):
            call()
    with pytest.raises(ChunkGone):
        tier.read(single(1))
    tier.close()


def test_an_index_deleted_while_open_is_built_anew(tmp_path: Path, caplog) -> None:
    one, two = open_tier(tmp_path), open_tier(tmp_path)
    put(one, single(1))
    assert keys(two.rows()) == {single(1).key}
    (tmp_path / "v1" / "index.sqlite").unlink()
    put(one, single(2))
    put(two, single(3))
    assert keys(one.rows()) == keys(two.rows()) == {single(t).key for t in (1, 2, 3)}
    assert one.totals().budget == PLENTY
    assert sum("built anew" in message for message in caplog.messages) == 1
    assert sound(one)
    one.close()
    two.close()


def test_changes_are_told_across_a_rebuild(tmp_path: Path) -> None:
    one, two = open_tier(tmp_path), open_tier(tmp_path)
    for _ in range(20):  # so that the numbers of the new index are far behind
        put(one, single(1))
        one.remove([single(1).key])
    put(one, single(1))
    put(one, single(2))
    assert keys(two.refresh().added) == {single(1).key, single(2).key}
    (tmp_path / "v1" / "index.sqlite").unlink()
    one.remove([single(2).key])
    put(one, single(3))
    changes = two.refresh()
    assert (keys(changes.added), changes.removed) == ({single(3).key}, [single(2).key])
    assert not one.refresh().added
    one.close()
    two.close()


def test_a_read_that_finds_damage_forgets_the_chunk(tier: DiskTier, tmp_path: Path) -> None:
    put(tier, single(1))
    os.truncate(file_of(tmp_path / "cache", single(1)), 100)
    with pytest.raises(ChunkDamaged):
        tier.read(single(1))
    assert tier.rows() == []
    put(tier, single(1))
    assert tier.read(single(1)) == blob_of(single(1))


def test_a_chunk_written_anew_while_its_damage_was_found_stays(tmp_path: Path, monkeypatch) -> None:
    from onceread.cache import chunkfile

    one, two = open_tier(tmp_path), open_tier(tmp_path)
    put(one, single(1))
    path = file_of(tmp_path, single(1))
    os.truncate(path, 100)
    read = chunkfile.read

    def meanwhile(*arguments) -> bytes:
        try:
            return read(*arguments)
        finally:
            path.unlink()
            put(two, single(1))

    monkeypatch.setattr(chunkfile, "read", meanwhile)
    with pytest.raises(ChunkDamaged):
        one.read(single(1))
    monkeypatch.setattr(chunkfile, "read", read)
    assert one.read(single(1)) == two.read(single(1)) == blob_of(single(1))
    assert sound(one)
    one.close()
    two.close()
