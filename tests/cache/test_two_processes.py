"""Two processes in one directory, and one that is killed: the budget holds, and what was written is found."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onceread.cache.disk import DiskTier
from tests.cache.disks import OTHER, blob_of, chain, files, lying, open_tier, put, single, sound

BLOCK = 4096
ROOT = Path(__file__).parents[2]

CHURN = """
import random, sys
from pathlib import Path
from onceread.cache.errors import ChunkGone
from tests.cache.disks import *

directory, seed, blocks, steps = Path(sys.argv[1]), *map(int, sys.argv[2:])
rng = random.Random(seed)
tier = open_tier(directory, budget=blocks * 4096)
known = {row.key for row in tier.rows()}
hits = 0
for step in range(steps):
    changes = tier.refresh()
    assert not known & {row.key for row in changes.added}, "told twice"
    known |= {row.key for row in changes.added}
    known -= set(changes.removed)
    chunks = chain(*(rng.randrange(3) for _ in range(6)), cuts=[2, 4, 6])
    for chunk in chunks:
        written = put(tier, chunk, rng.random() * 5, size=rng.choice((3000, 7000)))
        known -= {key for _, key in written.evicted}
        known.add(chunk.key)
    total = tier._database.look(lambda index: index.total())
    assert total <= blocks * 4096, total
    for chunk in chunks:
        try:
            blob = tier.read(chunk)
            assert blob == blob_of(chunk, len(blob))
            hits += 1
        except ChunkGone:
            known.discard(chunk.key)
    tier.touch([(chunk.key, ONCE) for chunk in chunks])
print(hits, flush=True)
sys.stdin.readline()  # until the others are done, too
changes = tier.refresh()
assert {row.key for row in tier.rows()} == (known | {row.key for row in changes.added}) - set(changes.removed)
tier.close()
"""

WRITE = """
import sys
from pathlib import Path
from tests.cache.disks import *

tier = open_tier(Path(sys.argv[1]), budget=int(sys.argv[3]))
first = int(sys.argv[2])
print("open", flush=True)
for token in range(first, first + 100_000):
    put(tier, single(token), float(token), size=int(sys.argv[4]))
    print(token, flush=True)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_three_that_write_read_and_evict_at_once_keep_the_budget_and_meet_no_error(tmp_path: Path) -> None:
    blocks = 20
    churning = [start(CHURN, tmp_path, seed, blocks, 60) for seed in range(3)]
    hits = [process.stdout.readline() for process in churning if process.stdout is not None]
    for process, hit in zip(churning, hits, strict=True):
        _, err = process.communicate("\n", timeout=120)
        assert process.returncode == 0, err
        assert int(hit) > 0
    tier = open_tier(tmp_path, budget=blocks * BLOCK)
    assert sound(tier)
    assert 0 < lying(tmp_path) == tier.totals().bytes <= blocks * BLOCK
    assert not list((tmp_path / "v1" / "tmp").glob("*.part"))
    tier.close()


def test_one_process_sees_what_the_other_writes_and_reads_it(tmp_path: Path) -> None:
    mine = open_tier(tmp_path)
    assert mine.rows() == []
    other = start(WRITE, tmp_path, 0, 1 << 30, 3000)
    assert other.stdout is not None
    other.stdout.readline()
    assert other.stdout.readline() == "0\n"
    added = mine.refresh().added
    assert single(0).key in {row.key for row in added}
    for row in added:
        assert mine.read(row.record) == blob_of(row.record)
    other.kill()
    other.communicate()
    mine.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_a_killed_writer_had_reported_is_found_and_whole(tmp_path: Path, seed: int) -> None:
    """Killed after a number of reports and a delay, both by seed: anywhere between two of its steps."""
    rng = random.Random(seed)
    reported: list[int] = []
    for round_ in range(2):
        writer = start(WRITE, tmp_path, round_ * 1000, 1 << 30, rng.choice((3000, 3_000_000)))
        kill_at = rng.randrange(25)
        timer = threading.Timer(rng.random() * 0.01, writer.kill)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        for count, line in enumerate(writer.stdout):  # ends with the writer's death
            reported.append(int(line))
            if count == kill_at:
                timer.start()
        writer.wait(30)
        assert writer.returncode == -signal.SIGKILL
        assert writer.stderr is not None
        assert writer.stderr.read() == ""
        writer.stdout.close()
        writer.stderr.close()
    tier = open_tier(tmp_path)
    rows = {row.key: row.record for row in tier.rows()}
    for token in reported:
        blob = tier.read(rows[single(token).key])
        assert blob == blob_of(single(token), len(blob))
    assert sound(tier)
    assert len(list((tmp_path / "v1" / "tmp").iterdir())) == 1, "its own lock"
    assert tier._database.look(lambda index: index.reservations()) == []
    tier.close()


def test_a_writer_killed_under_eviction_leaves_a_sound_directory_within_its_budget(tmp_path: Path) -> None:
    for round_ in range(3):
        writer = start(WRITE, tmp_path, round_ * 1000, 8 * BLOCK, 3000)
        assert writer.stdout is not None
        for _ in range(20 + round_ * 7):
            writer.stdout.readline()
        writer.kill()
        writer.communicate()
        tier = open_tier(tmp_path, budget=8 * BLOCK)
        assert sound(tier)
        assert lying(tmp_path) <= 8 * BLOCK
        tier.close()


DIE = """
import os, sys
from pathlib import Path
from onceread.cache import chunkfile, directory
from tests.cache.disks import *

tier = open_tier(Path(sys.argv[1]), budget=4 * 4096)
put(tier, single(1), 1e6)  # worth more than what has to be adopted
die = lambda *_, **__: os._exit(9)
if sys.argv[2] == "with a place and no file":
    chunkfile.write = die
elif sys.argv[2] == "with a file without its name":
    directory.Directory.place = die
else:
    from onceread.cache.index import Index
    Index.insert = die
put(tier, single(2))
"""


@pytest.mark.parametrize(
    "reopen", [True, False], ids=["is found at the next opening", "makes room for the living"]
)
@pytest.mark.parametrize(
    "when", ["with a place and no file", "with a file without its name", "with a name and no row"]
)
def test_who_died(tmp_path: Path, when: str, reopen: bool) -> None:
    living = open_tier(tmp_path, budget=4 * BLOCK, fingerprint=OTHER)
    dead = start(DIE, tmp_path, when)
    _, err = dead.communicate(timeout=60)
    assert dead.returncode == 9, err
    whole = when == "with a name and no row"

    def reserved(tier: DiskTier) -> int:
        return len(tier._database.look(lambda index: index.reservations()))

    assert reserved(living) == 1
    if reopen:
        tier = open_tier(tmp_path, budget=4 * BLOCK)
        assert {row.key for row in tier.rows()} == {single(1).key} | ({single(2).key} if whole else set())
        assert (tier.read(single(2)) == blob_of(single(2))) if whole else True
        tier.close()
    else:
        evicted = [put(living, single(token, fingerprint=OTHER), 2e6).evicted for token in range(3)]
        assert evicted[2] == ([(bytes(range(32)), single(2).key)] if whole else []), (
            "its place was given back"
        )
    assert reserved(living) == 0
    assert not list((tmp_path / "v1" / "tmp").glob("*.part"))
    assert sound(living)
    living.close()


def test_two_that_write_the_same_chunk_at_once_are_harmless(tmp_path: Path, monkeypatch) -> None:
    from onceread.cache import chunkfile

    one, two = open_tier(tmp_path), open_tier(tmp_path)
    chunk = chain(1, 2, 3, cuts=[3])[0]
    write = chunkfile.write

    def meanwhile(*arguments, **options) -> None:
        monkeypatch.setattr(chunkfile, "write", write)
        put(two, chunk)
        write(*arguments, **options)

    monkeypatch.setattr(chunkfile, "write", meanwhile)
    put(one, chunk)
    assert one.read(chunk) == two.read(chunk) == blob_of(chunk)
    assert len(files(tmp_path)) == one.totals().chunks == 1
    assert one._database.look(lambda index: index.total()) == lying(tmp_path)
    assert sound(one)
    one.close()
    two.close()


def test_an_index_deleted_in_the_middle_of_a_write_does_not_break_it(tmp_path: Path, monkeypatch) -> None:
    from onceread.cache import chunkfile

    tier, other = (open_tier(tmp_path, budget=2 * BLOCK) for _ in range(2))
    put(tier, single(1))
    put(tier, single(2))
    write = chunkfile.write

    def delete_index(*arguments, **options) -> None:
        write(*arguments, **options)
        (tmp_path / "v1" / "index.sqlite").unlink()
        monkeypatch.setattr(chunkfile, "write", write)
        put(other, single(4))  # takes the place that the new index knows nothing of

    monkeypatch.setattr(chunkfile, "write", delete_index)
    assert len(put(tier, single(3), 9.0).evicted) == 2
    assert tier.read(single(3)) == blob_of(single(3))
    assert lying(tmp_path) <= 2 * BLOCK
    assert sound(tier)
    tier.close()
    other.close()
