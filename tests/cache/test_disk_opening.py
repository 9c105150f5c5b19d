"""Opening a directory: modes, leftovers, an index that is damaged or gone, and paths that will not do."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from onceread.cache.disk import DiskTier
from onceread.cache.errors import DiskUnusable
from tests.cache.disks import (
    BLOCK,
    OTHER,
    PLENTY,
    blob_of,
    chain,
    file_of,
    keys,
    lying,
    open_tier,
    packed,
    pin_of,
    put,
    single,
    sound,
)


def test_admin_sees_everything_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskUnusable, match="is not a cache directory"):
        DiskTier.admin(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    tier = open_tier(tmp_path / "cache", budget=10 * BLOCK)
    put(tier, single(1))
    admin = DiskTier.admin(tmp_path / "cache")
    assert [row.record for row in admin.all_rows()] == [single(1)]
    assert admin.totals().budget == 10 * BLOCK
    assert [model.label for model in admin.models()] == ["a model"]
    admin.pin(pin_of(packed(1)))
    assert tier.refresh().pins
    assert admin.unpin("ab12")
    assert list(admin.verify()) == []
    assert admin.clear() == BLOCK
    assert tier.refresh().removed == [single(1).key]
    admin.close()
    tier.close()


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o777 if os.geteuid() == 0 else 0o077):
        directory = tmp_path / f"{umask:o}" / "below"
        old = os.umask(umask)
        try:
            tier = open_tier(directory)
            put(tier, single(1))
            tier.pin(pin_of(packed(1)))
            for path in directory.parent.rglob("*"):
                wanted = 0o700 if path.is_dir() else 0o600
                assert stat.S_IMODE(path.stat().st_mode) == wanted, path
        finally:
            os.umask(old)
        tier.close()


def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_tier(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "v1").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "/".join(["y" * 200] * 30), "zero\0byte"])
def test_a_path_that_cannot_be_a_directory_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskUnusable) as caught:
        open_tier(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs a file system that refuses writes")
def test_a_file_system_that_refuses_writes_is_told_in_one_line() -> None:
    with pytest.raises(DiskUnusable) as caught:
        open_tier(Path("/proc/onceread"))
    assert "\n" not in str(caught.value)


def test_a_directory_of_ours_that_others_could_enter_is_closed_to_them(tmp_path: Path) -> None:
    open_tier(tmp_path).close()
    for folder in ("v1", "v1/chunks", "v1/pins", "v1/tmp"):
        (tmp_path / folder).chmod(0o755)
    (tmp_path / "v1" / "index.sqlite").chmod(0o644)
    open_tier(tmp_path).close()
    for folder in ("v1", "v1/chunks", "v1/pins", "v1/tmp"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "v1" / "index.sqlite").stat().st_mode) == 0o600


def test_rows_and_files_that_lost_each_other_are_told_apart_at_opening(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for token in range(4):
        put(tier, single(token))
    tier.close()
    file_of(tmp_path, single(0)).unlink()
    file_of(tmp_path, single(9)).parent.mkdir(exist_ok=True)
    file_of(tmp_path, single(1)).rename(file_of(tmp_path, single(9)))
    tier = open_tier(tmp_path)
    assert keys(tier.rows()) == {single(2).key, single(3).key}
    assert tier.totals().bytes == lying(tmp_path) == 2 * BLOCK
    assert not file_of(tmp_path, single(9)).exists(), "it had another one's name"
    tier.close()


def test_v1_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "v1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskUnusable, match="is not a directory of this user"):
        open_tier(tmp_path / "cache")


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tmp = tmp_path / "v1" / "tmp"
    (tmp / "1-0123456789abcdef.lock").touch()
    (tmp / "1-0123456789abcdef.7.part").write_bytes(bytes(10))
    (tmp / "2-0123456789abcdef.7.part").write_bytes(bytes(10))
    living = {path.name for path in tmp.iterdir() if path.name.startswith(f"{os.getpid()}-")}
    open_tier(tmp_path).close()
    assert {path.name for path in tmp.iterdir()} == living
    tier.close()
    assert not list(tmp.iterdir())


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000), bytes(20_000)],
    ids=["an empty file", "garbage", "a database's head and nothing behind it", "zeros"],
)
def test_a_damaged_index_is_built_anew_with_one_warning(tmp_path: Path, content: bytes, caplog) -> None:
    chunks = chain(*range(10), cuts=[4, 10])
    tier = open_tier(tmp_path)
    for chunk in chunks:
        put(tier, chunk)
    tier.close()
    (tmp_path / "v1" / "index.sqlite").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        tier = open_tier(tmp_path)
    assert len(caplog.records) == 1
    assert keys(tier.rows()) == {chunk.key for chunk in chunks}
    assert {row.record for row in tier.rows()} == set(chunks)
    assert [tier.read(chunk) for chunk in chunks] == [blob_of(chunk) for chunk in chunks]
    assert [model.label for model in tier.models()] == ["a model"]
    tier.close()


def test_an_index_damaged_in_the_middle_is_built_anew(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for token in range(40):
        put(tier, single(token))
    tier.close()
    index = tmp_path / "v1" / "index.sqlite"
    content = bytearray(index.read_bytes())
    content[8192:40_960] = bytes([0xA5]) * 32_768
    index.write_bytes(content)
    tier = open_tier(tmp_path)
    assert len(tier.rows()) == 40
    assert sound(tier)
    tier.close()


def test_an_index_of_another_version_is_built_anew(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    put(tier, single(1))
    tier.close()
    connection = sqlite3.connect(tmp_path / "v1" / "index.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    tier = open_tier(tmp_path)
    assert keys(tier.rows()) == {single(1).key}
    tier.close()


def test_the_label_of_a_model_survives_the_index(tmp_path: Path) -> None:
    other = DiskTier(tmp_path, PLENTY, OTHER, "another model, f16/f16")
    put(other, single(1, fingerprint=OTHER))
    other.close()
    (tmp_path / "v1" / "index.sqlite").unlink()
    admin = DiskTier.admin(tmp_path)
    assert [model.label for model in admin.models()] == ["another model, f16/f16"]
    assert admin.totals().budget == 0, "nobody has said it yet"
    admin.close()
