"""Pins on disk, clearing, and checking."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from onceread.cache.disk import DiskTier
from onceread.cache.errors import PinRefused
from onceread.cache.names import namespace_id
from tests.cache.disks import (
    BLOCK,
    FINGERPRINT,
    OTHER,
    blob_of,
    chain,
    file_of,
    files,
    keys,
    open_tier,
    packed,
    pin_of,
    put,
    record,
    single,
    sound,
)


@pytest.fixture
def tier(tmp_path: Path):
    tier = open_tier(tmp_path / "cache")
    yield tier
    tier.close()


def test_a_pinned_path_stays_and_what_it_ends_in_too(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=4 * BLOCK)
    chunks = chain(*range(9), cuts=[3, 6, 9])
    for chunk in chunks:
        put(tier, chunk, 0.0)
    tier.pin(pin_of(packed(0, 1, 2, 3)))
    assert [row.pinned for row in tier.rows()] == [True, True, False]
    for token in range(20, 30):
        put(tier, single(token), 100.0)
    assert {chunks[0].key, chunks[1].key} <= keys(tier.rows())
    assert chunks[2].key not in keys(tier.rows())
    assert [pin.bytes for pin in tier.pins()] == [2 * BLOCK] == [tier.totals().pinned_bytes]
    assert tier.unpin("ab12")
    assert not any(row.pinned for row in tier.rows())
    assert not tier.unpin("ab12")
    tier.close()


def test_a_path_that_parts_inside_a_pin_is_not_pinned(tier: DiskTier) -> None:
    wanted, other = chain(1, 2, 3, 4, cuts=[2, 4]), chain(1, 2, 3, 9, cuts=[2, 4])
    for chunk in (*wanted, other[1], *chain(7, 2, 3, 4, cuts=[2, 4])):
        put(tier, chunk)
    put(tier, record(packed(1, 2, 3, 4), 0, 2, namespace="another"))
    tier.pin(pin_of(packed(1, 2, 3, 4)))
    assert {row.key for row in tier.rows() if row.pinned} == {chunk.key for chunk in wanted}


def test_a_chunk_with_the_same_tokens_behind_another_beginning_is_not_pinned(tier: DiskTier) -> None:
    wanted = chain(1, 2, 3, 4, cuts=[2, 4])
    for chunk in (*chain(8, 2, 3, 4, cuts=[2, 4]), *wanted):
        put(tier, chunk)
    tier.pin(pin_of(packed(1, 2, 3)))
    assert {row.key for row in tier.rows() if row.pinned} == {chunk.key for chunk in wanted}


def test_of_several_chunks_that_a_pin_ends_in_one_is_enough(tier: DiskTier) -> None:
    for last in range(5):
        for chunk in chain(1, 2, 3, last, cuts=[2, 4])[last > 0 :]:
            put(tier, chunk)
    tier.pin(pin_of(packed(1, 2, 3)))
    assert sum(row.pinned for row in tier.rows()) == 2


def test_a_chunk_that_comes_after_its_pin_is_pinned_by_whoever_writes_it(tmp_path: Path) -> None:
    one, two = open_tier(tmp_path), open_tier(tmp_path)
    one.pin(pin_of(packed(0, 1, 2, 3)))
    for chunk in chain(0, 1, 2, 3, cuts=[2, 4]):
        put(two, chunk)
    assert [row.pinned for row in one.rows()] == [True, True]
    one.close()
    two.close()


def test_a_pin_that_cannot_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, budget=4 * BLOCK)
    chunks = chain(1, 2, 3, 4, cuts=[1, 2, 3, 4])
    for chunk in chunks:
        put(tier, chunk)
    tier.pin(pin_of(packed(1, 2), id="aa"))
    with pytest.raises(
        PinRefused, match=r"8192 bytes on disk beside 8192 .* budget of 16384 bytes at most 14745"
    ):
        tier.pin(pin_of(packed(1, 2, 3, 4), id="bb"))
    assert [pin.id for pin in tier.pins()] == ["aa"]
    assert [row.pinned for row in tier.rows()] == [True, True, False, False]
    tier.close()


def test_pins_survive_a_restart_without_the_index(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    pin = pin_of(packed(1, 2, 3), id="0f")
    for chunk in chain(1, 2, 3, cuts=[2, 3]):
        put(tier, chunk)
    tier.pin(pin)
    tier.close()
    for file in (tmp_path / "v1").glob("index.sqlite*"):
        file.unlink()
    tier = open_tier(tmp_path)
    assert tier.pins() == [replace(pin, bytes=2 * BLOCK)]
    assert all(row.pinned for row in tier.rows())
    tier.close()


def test_a_damaged_pin_is_left_out_and_told_once(tier: DiskTier, tmp_path: Path, caplog) -> None:
    tier.pin(pin_of(packed(1), id="aa"))
    folder = tmp_path / "cache" / "v1" / "pins"
    for name, content in [
        ("bb", "{"),
        ("cc", "[]"),
        ("dd", (folder / "aa.json").read_text()),
        ("ee", "[" * 100_000),
        ("ff", '{"format": 1, "id": "ff", "fingerprint": "00"}'),
    ]:
        (folder / f"{name}.json").write_text(content)
    (folder / "0a.json").mkdir()
    for _ in range(2):
        assert [pin.id for pin in tier.pins()] == ["aa"]
    told = [message for message in caplog.messages if "is not a pin" in message]
    assert len(told) == 6


@pytest.mark.parametrize("id_", ["../index", "", "x/y", "AB", "a" * 100, "ab.json", "\0"])
def test_what_is_no_id_of_a_pin_unpins_nothing(tier: DiskTier, tmp_path: Path, id_: str) -> None:
    (tmp_path / "cache" / "v1" / "index.json").write_text("precious")
    assert not tier.unpin(id_)
    assert (tmp_path / "cache" / "v1" / "index.json").exists()


def test_clear_takes_what_it_is_told_to_and_its_pins(tmp_path: Path) -> None:
    one, two = open_tier(tmp_path), open_tier(tmp_path, fingerprint=OTHER)
    put(one, single(1))
    put(one, single(2, namespace="private"))
    put(two, single(1, fingerprint=OTHER))
    one.pin(pin_of(packed(1), id="aa"))
    one.pin(pin_of(packed(2), id="bb", namespace="private"))
    two.pin(pin_of(packed(1), id="cc", fingerprint=OTHER))
    assert one.clear(namespaces=[namespace_id("private")]) == BLOCK
    assert keys(one.rows()) == {single(1).key}
    assert {pin.id for pin in one.pins()} == {"aa", "cc"}
    assert one.clear(fingerprint=OTHER) == BLOCK
    assert two.refresh().removed == [single(1, fingerprint=OTHER).key]
    put(two, single(5, fingerprint=OTHER))
    assert one.clear() == 2 * BLOCK
    assert (one.all_rows(), one.pins(), files(tmp_path)) == ([], [], [])
    one.close()
    two.close()


def test_verify_drops_the_bad_tells_the_foreign_and_ends_clean(tier: DiskTier, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    for token in range(5):
        put(tier, single(token))
    truncated, gone, swapped = (file_of(directory, single(token)) for token in (0, 1, 2))
    os.truncate(truncated, 2000)
    gone.unlink()
    swapped.write_bytes(file_of(directory, single(3)).read_bytes())
    foreign = directory / "v1" / "chunks" / "readme.txt"
    foreign.write_text("mine")
    rowless = file_of(directory, single(9))
    rowless.parent.mkdir(exist_ok=True)
    rowless.write_bytes(b"ONCEREAD" + bytes(100))
    findings = {finding.path: finding for finding in tier.verify()}
    assert set(findings) == {truncated, gone, swapped, foreign, rowless}
    assert findings[truncated].key == single(0).key
    assert findings[truncated].fingerprint == FINGERPRINT
    assert findings[foreign].key is None
    assert foreign.read_text() == "mine"
    foreign.unlink()
    assert sound(tier)
    assert keys(tier.rows()) == {single(3).key, single(4).key}


def test_verify_adopts_a_whole_file_that_has_no_row(tmp_path: Path) -> None:
    elsewhere = open_tier(tmp_path / "a")
    put(elsewhere, single(1))
    elsewhere.close()
    tier = open_tier(tmp_path / "b")
    target = file_of(tmp_path / "b", single(1))
    target.parent.mkdir()
    file_of(tmp_path / "a", single(1)).rename(target)
    assert list(tier.verify()) == []
    assert tier.read(single(1)) == blob_of(single(1))
    assert keys(tier.refresh().added) <= {single(1).key}
    tier.close()
