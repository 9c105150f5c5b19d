"""The file of a chunk: what goes in comes out, and nothing else passes for it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceread.cache import chunkfile
from onceread.cache.contract import Record
from onceread.cache.errors import ChunkDamaged, ChunkGone
from tests.cache.disks import FINGERPRINT, OTHER, blob_of, chain, single

hashes = st.binary(min_size=32, max_size=32)


@st.composite
def records(draw: st.DrawFn) -> Record:
    n = draw(st.integers(1, 256))
    lengths = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    return Record(
        root=draw(hashes),
        namespace=draw(hashes),
        name=draw(hashes),
        parent=draw(hashes),
        start=draw(st.integers(0, 2**32 - 1)),
        tokens=draw(st.binary(min_size=4 * n, max_size=4 * n)),
        spelled=os.urandom(sum(lengths)),
        lengths=b"".join(length.to_bytes(2, "little") for length in lengths),
    )


def make(path: Path, record: Record, blob: bytes, *, fingerprint: bytes = FINGERPRINT) -> Path:
    path.unlink(missing_ok=True)
    chunkfile.write(path, chunkfile.pack_head(fingerprint, record, len(blob), "a model"), blob)
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=records(), blob=st.binary(max_size=5000), label=st.text(max_size=30), fsync=st.booleans())
def test_what_is_written_is_read(
    tmp_path: Path, record: Record, blob: bytes, label: str, fsync: bool
) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    head = chunkfile.pack_head(FINGERPRINT, record, len(blob), label)
    chunkfile.write(path, head, memoryview(blob), fsync=fsync)
    assert chunkfile.read(path, FINGERPRINT, record) == blob
    found = chunkfile.read_head(path)
    assert (found.record, found.fingerprint, found.blob_bytes) == (record, FINGERPRINT, len(blob))
    assert found.label == label.encode("utf-8", "replace").decode()
    assert found.file_bytes == path.stat().st_size
    assert chunkfile.check(path) == found == chunkfile.check(path, FINGERPRINT, record)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_and_no_missing_end_passes(tmp_path: Path, data: st.DataObject) -> None:
    record = chain(*range(9), cuts=[4, 9])[1]
    path = make(tmp_path / "file", record, blob_of(record, 300))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    path.write_bytes(content)
    with pytest.raises(ChunkDamaged) as caught:
        chunkfile.read(path, FINGERPRINT, record)
    assert "\n" not in str(caught.value)
    with pytest.raises(ChunkDamaged):
        chunkfile.check(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": bytes(32)}, "name is different"),
        ({"start": 5}, "start is different"),
        ({"parent": bytes(32)}, "parent is different"),
        ({"root": bytes(32)}, "root is different"),
        ({"namespace": bytes(32)}, "namespace is different"),
        ({"tokens": b"abcd" * 5}, "tokens are different"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_whole_file_of_another_chunk_is_refused_by_its(tmp_path: Path, change: dict, words: str) -> None:
    expected = chain(*range(9), cuts=[4, 9])[1]
    there = dataclasses.replace(expected, **change)
    path = make(tmp_path / "file", there, b"blob")
    with pytest.raises(ChunkDamaged, match=words):
        chunkfile.read(path, FINGERPRINT, expected)


def test_another_models_file_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "file", single(1), b"blob", fingerprint=OTHER)
    with pytest.raises(ChunkDamaged, match="another model"):
        chunkfile.read(path, FINGERPRINT, single(1))


def test_a_future_format_version_is_named(tmp_path: Path) -> None:
    path = make(tmp_path / "file", single(1), b"blob")
    content = bytearray(path.read_bytes())
    content[8:12] = (7).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ChunkDamaged, match="format version 7"):
        chunkfile.read(path, FINGERPRINT, single(1))


def test_a_file_that_is_not_there_is_gone_and_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(ChunkGone):
        chunkfile.read(tmp_path / "nothing", FINGERPRINT, single(1))
    (tmp_path / "file").touch()
    with pytest.raises(ChunkGone):
        chunkfile.read(tmp_path / "file" / "below", FINGERPRINT, single(1))


def test_a_file_truncated_while_it_is_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = single(1)
    path = make(tmp_path / "file", record, bytes(100_000))
    pread = os.pread

    def truncating(fd: int, size: int, offset: int) -> bytes:
        if size == 100_000:
            os.truncate(path, 50_000)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", truncating)
    with pytest.raises(ChunkDamaged, match="truncated while it was read"):
        chunkfile.read(path, FINGERPRINT, record)


def test_a_read_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = single(1)
    path = make(tmp_path / "file", record, blob_of(record))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))
    assert chunkfile.read(path, FINGERPRINT, record) == blob_of(record)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from onceread.cache import chunkfile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try: chunkfile.write(Path(sys.argv[1]), b'head', bytes(100_000))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "file"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "too large" in done.stdout
    assert not list(tmp_path.iterdir())
