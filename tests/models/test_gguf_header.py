"""The header of a GGUF file: as the reference reader has it, and a clear word on files that are torn or lie."""

from __future__ import annotations

import os
import random
import resource
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf import GGUFReader
from tests.models.gguf_files import ARRAY, STRING, U32, head, text, write_gguf

from onceread.models.errors import GgufInvalid
from onceread.models.gguf_header import LongArray, read_header


def test_a_file_is_read_as_by_the_reference_reader(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", words=5000, per_layer=[1, 2, 3], file_type=1)
    ours, theirs = read_header(path), GGUFReader(str(path))
    own = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(own)
    for key, value in ours.metadata.items():
        if isinstance(value, LongArray):
            assert value.length == len(own[key].data), key
        else:
            assert value == own[key].contents(), key
    assert ours.metadata["tokenizer.ggml.tokens"] == LongArray("string", 5000)
    assert [(t.name, list(t.shape), t.type, t.bytes) for t in ours.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type.name, t.n_bytes) for t in theirs.tensors
    ]
    assert ours.data_start == theirs.data_offset
    assert ours.missing_bytes == 0


def test_a_real_model(smollm2_path: Path) -> None:
    header = read_header(smollm2_path)
    assert (header.architecture, header.number(header.of("context_length"))) == ("llama", 8192)
    assert sum(tensor.weights for tensor in header.tensors) == 134_515_008
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray("string", 49_152)
    assert header.missing_bytes == 0


def test_a_large_vocabulary_is_stepped_over(tmp_path: Path) -> None:
    """What is kept of 150,000 words is their number; the file is read a window at a time."""
    path = write_gguf(tmp_path / "m.gguf", words=150_000)
    tracemalloc.start()
    header = read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray("string", 150_000)
    assert header.text("tokenizer.chat_template") == "{{ messages }}"
    assert peak < 4 * 2**20


def test_every_torn_file_is_told_from_a_whole_one(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    torn = tmp_path / "torn.gguf"
    start = read_header(tmp_path / "m.gguf").data_start
    for length in {*range(0, start, 7), *range(start - 3, len(whole), 311), len(whole) - 4096}:
        torn.write_bytes(whole[: max(length, 0)])
        if length < start - 31:  # behind the header comes the padding
            with pytest.raises(GgufInvalid, match=r"torn|not a GGUF file"):
                read_header(torn)
            continue
        try:
            assert read_header(torn).missing_bytes > 0, length
        except GgufInvalid:
            assert length < start


def test_a_vocabulary_torn_in_its_middle(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", words=150_000)
    path.write_bytes(path.read_bytes()[:1_000_000])
    with pytest.raises(GgufInvalid, match="torn"):
        read_header(path)


_HUGE = 2**62
_HOSTILE = [
    pytest.param(b"", "ends inside of its first bytes", id="empty"),
    pytest.param(b"<html>", "not a GGUF file", id="a web page"),
    pytest.param(b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian", id="for other machines"),
    pytest.param(head(version=1), "version 1", id="too old"),
    pytest.param(head(values=_HUGE), "announces", id="endless metadata"),
    pytest.param(head(tensors=_HUGE), "announces", id="endless tensors"),
    pytest.param(head(values=900_000), "torn", id="more metadata than the file can hold"),
    pytest.param(head(values=1) + struct.pack("<Q", _HUGE) + bytes(64), "torn", id="an endless key"),
    pytest.param(
        head(values=1) + text("k") + struct.pack("<IQ", STRING, _HUGE) + bytes(64),
        "torn",
        id="an endless text",
    ),
    pytest.param(
        head(values=1) + text("k") + struct.pack("<IIQ", ARRAY, U32, _HUGE) + bytes(64),
        "torn",
        id="endless numbers",
    ),
    pytest.param(
        head(values=1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**61 - 1) + bytes(64),
        "torn",
        id="endless texts",
    ),
    pytest.param(
        head(values=1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(64),
        "array of arrays",
        id="an array of arrays",
    ),
    pytest.param(
        head(values=1) + text("k") + struct.pack("<I", 77) + bytes(64), "type 77", id="no such type"
    ),
    pytest.param(
        head(tensors=1) + text("t") + struct.pack("<I", 9) + bytes(64), "9 dimensions", id="many dimensions"
    ),
    pytest.param(
        head(tensors=1) + text("t") + struct.pack("<IQQIQ", 2, _HUGE, _HUGE, 0, 0),
        "weights",
        id="an endless tensor",
    ),
    pytest.param(
        head(values=1) + text("general.alignment") + struct.pack("<II", U32, 0),
        "alignment",
        id="no alignment",
    ),
]


@pytest.mark.parametrize(("content", "says"), _HOSTILE)
def test_a_file_that_lies(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufInvalid, match=says) as told:
        read_header(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


def test_a_huge_hole_is_not_read(tmp_path: Path) -> None:
    """A sparse file of a terabyte has room for whatever its header claims."""
    path = tmp_path / "m.gguf"
    for content in (
        head(values=1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**36),
        head(values=1) + text("k") + struct.pack("<IQ", STRING, 2**39),
        head(values=1) + text("k") + struct.pack("<IIQ", ARRAY, U32, 2**37),
    ):
        with path.open("wb") as file:
            file.write(content)
            file.truncate(2**40)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(GgufInvalid):
            read_header(path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_flipped_bytes_never_do_more_than_a_wrong_value(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    rng = random.Random(20240229)
    path = tmp_path / "flipped.gguf"
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(damaged), 900))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            header = read_header(path)
        except GgufInvalid:
            continue
        assert header.missing_bytes >= 0
        header.number(header.of("context_length"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(GgufInvalid, match="not a file"):
        read_header(tmp_path / "m.gguf")
