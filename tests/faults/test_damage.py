"""A chunk's file, damaged in every way that comes to mind: a miss each time, and a new one can be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cache.disks import OTHER, blob_of, chain, file_of, open_tier, put, single, sound

from onceread.cache.errors import ChunkDamaged, ChunkGone

PATH = chain(*range(12), cuts=[5, 12])
CHUNK = PATH[1]
HEADER = 16  # bytes before it


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 0x20
        path.write_bytes(content)

    return damage


def flip_text(of: bytes) -> Callable[[Path], None]:
    return lambda path: flip(path.read_bytes().index(of))(path)


def truncate(to: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, to if to >= 0 else path.stat().st_size + to)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def swap(path: Path) -> None:
    other = file_of(path.parents[3], PATH[0])
    other.rename(path.with_suffix(".between"))
    path.rename(other)
    path.with_suffix(".between").rename(path)


def other_model(path: Path) -> None:
    elsewhere = open_tier(path.parents[3] / "elsewhere", fingerprint=OTHER)
    chunk = chain(*range(12), cuts=[5, 12], fingerprint=OTHER)[1]
    put(elsewhere, chunk)
    elsewhere.close()
    file_of(path.parents[3] / "elsewhere", chunk).rename(path)


def future(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8:12] = (99).to_bytes(4, "little")
    path.write_bytes(content)


def link(path: Path) -> None:
    path.rename(path.parents[3] / "target")
    path.symlink_to(path.parents[3] / "target")


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated to nothing": truncate(0),
    "truncated in the magic": truncate(5),
    "truncated in the header": truncate(100),
    "truncated in the blob": truncate(1500),
    "truncated by one byte": truncate(-1),
    "grown": grow,
    "a byte flipped in the magic": flip(0),
    "a byte flipped in the length of the header": flip(12),
    "a byte flipped in the fingerprint": flip(HEADER),
    "a byte flipped in the name": flip_text(CHUNK.name),
    "a byte flipped in the parent": flip_text(CHUNK.parent),
    "a byte flipped in the tokens": flip_text(CHUNK.tokens),
    "a byte flipped in the spelled tokens": flip_text(CHUNK.spelled),
    "a byte flipped in the blob": flip_text(blob_of(CHUNK)),
    "a byte flipped in the checksum": flip(-1),
    "swapped with another": swap,
    "replaced by zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "replaced by another model's": other_model,
    "of a future format": future,
    "removed": Path.unlink,
    "a symbolic link": link,
    "a link to nowhere": replace_by(lambda path: path.symlink_to("nowhere")),
    "an empty directory": replace_by(Path.mkdir),
    "a directory with something in it": replace_by(lambda path: (path / "more").mkdir(parents=True)),
    "a fifo": replace_by(os.mkfifo),
}


@pytest.mark.parametrize("restart", [False, True], ids=["while it is open", "before it is opened"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_file_that_is(tmp_path: Path, damage: Callable[[Path], None], restart: bool) -> None:
    directory = tmp_path / "cache"
    tier = open_tier(directory)
    for chunk in PATH:
        put(tier, chunk)
    path = file_of(directory, CHUNK)
    if restart:
        tier.close()
    damage(path)
    if restart:
        tier = open_tier(directory)

    with pytest.raises((ChunkDamaged, ChunkGone)) as caught:
        tier.read(CHUNK)
    assert "\n" not in str(caught.value)
    assert CHUNK.key not in {row.key for row in tier.rows()}
    with pytest.raises((ChunkDamaged, ChunkGone)):
        tier.read(CHUNK)

    for chunk in PATH:
        put(tier, chunk)
    for chunk in PATH:
        if damage is not swap or chunk is CHUNK:
            assert tier.read(chunk) == blob_of(chunk)
    assert file_of(directory, CHUNK).is_file()
    list(tier.verify())
    assert all(finding.key is None for finding in tier.verify()), "what is left is foreign, and not bad"
    tier.close()


def test_a_links_target_is_never_touched(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    tier = open_tier(directory)
    put(tier, CHUNK)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path = file_of(directory, CHUNK)
    path.unlink()
    path.symlink_to(precious)
    with pytest.raises(ChunkDamaged, match="symbolic link"):
        tier.read(CHUNK)
    assert not path.is_symlink()
    path.symlink_to(precious)
    put(tier, CHUNK)
    assert tier.read(CHUNK) == blob_of(CHUNK)
    assert precious.read_text() == "mine"
    tier.close()


def test_a_directory_in_a_chunks_place_keeps_what_is_in_it(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    put(tier, CHUNK)
    path = file_of(tmp_path, CHUNK)
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("precious")
    with pytest.raises(ChunkDamaged, match="not a regular file"):
        tier.read(CHUNK)
    assert (path / "mine").exists()
    put(tier, CHUNK)
    assert [found.read_text() for found in path.parent.glob("*.moved-*/mine")] == ["precious"]
    tier.close()


def test_a_deleted_directory_of_chunks_is_a_miss_for_each(tmp_path: Path) -> None:
    import shutil

    tier = open_tier(tmp_path)
    for token in range(5):
        put(tier, single(token))
    for folder in (tmp_path / "v1" / "chunks").iterdir():
        shutil.rmtree(folder)
    for token in range(5):
        with pytest.raises(ChunkGone):
            tier.read(single(token))
    assert tier.rows() == []
    put(tier, single(1))
    assert sound(tier)
    tier.close()
