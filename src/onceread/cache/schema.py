"""The tables of the index on disk, and what their rows are in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceread.cache.contract import Key, Record, Use

APPLICATION = 0x4F6E6365  # "Once"
VERSION = 2

SCHEMA = """
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generation TEXT NOT NULL,  -- another one after each rebuild: numbers of before mean nothing then
    budget INTEGER,            -- of the directory; NULL until somebody who knows it has opened it
    clock REAL NOT NULL,       -- the highest priority ever evicted
    checkpoint_clock REAL NOT NULL,  -- the same, with those that went for lack of room among checkpoints
    seq INTEGER NOT NULL,
    pins INTEGER NOT NULL      -- counts changes of the pins
);
CREATE TABLE models (fingerprint BLOB PRIMARY KEY, label TEXT NOT NULL, last_used REAL NOT NULL);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    name BLOB NOT NULL, start INTEGER NOT NULL, n INTEGER NOT NULL,  -- no tokens: a checkpoint
    reach INTEGER NOT NULL,
    fingerprint BLOB NOT NULL, namespace BLOB NOT NULL, root BLOB NOT NULL, parent BLOB NOT NULL,
    file_bytes INTEGER NOT NULL, pinned INTEGER NOT NULL, seq INTEGER NOT NULL,
    hits INTEGER NOT NULL, last_used REAL NOT NULL, value REAL NOT NULL, priority REAL NOT NULL,
    tokens BLOB NOT NULL, spelled BLOB NOT NULL, lengths BLOB NOT NULL,
    UNIQUE (name, start)
);
CREATE INDEX by_parent ON chunks (parent);
CREATE INDEX by_root ON chunks (root);
CREATE INDEX by_seq ON chunks (fingerprint, seq, name, start);
CREATE INDEX by_priority ON chunks (pinned, priority, last_used, start DESC, name);
CREATE INDEX checkpoints ON chunks (pinned, priority, last_used, start DESC, name, file_bytes) WHERE n = 0;
CREATE INDEX by_size ON chunks (fingerprint, pinned, file_bytes, n);
-- Room that is taken and not filled yet. Not in chunks: two processes may be writing the same one.
CREATE TABLE writing (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, name BLOB NOT NULL, start INTEGER NOT NULL, parent BLOB NOT NULL,
    bytes INTEGER NOT NULL, checkpoint INTEGER NOT NULL
);
CREATE INDEX writing_by_parent ON writing (parent);
CREATE TABLE removals (seq INTEGER PRIMARY KEY, name BLOB NOT NULL, start INTEGER NOT NULL);
"""

COLUMNS = """root, namespace, name, parent, start, tokens, spelled, lengths, reach,
    fingerprint, hits, last_used, value, file_bytes, pinned, seq"""


@dataclass(frozen=True, slots=True)
class Row:
    """A chunk on disk."""

    record: Record
    fingerprint: bytes
    use: Use
    file_bytes: int
    pinned: bool
    seq: int

    @property
    def key(self) -> Key:
        return self.record.key


@dataclass(frozen=True, slots=True)
class Victim:
    """A chunk that has lost its row; its file is to go, too."""

    fingerprint: bytes
    key: Key
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for a chunk that somebody is writing, or was when he died."""

    id: str
    owner: str
    key: Key


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that has, or had, chunks in the directory."""

    fingerprint: bytes
    label: str
    last_used: float  # Unix time


@dataclass(frozen=True, slots=True)
class Totals:
    """What all chunks take together, or all of one model."""

    bytes: int
    chunks: int  # without checkpoints
    tokens: int
    pinned_bytes: int
    budget: int  # 0: not known
    evictions: int = 0  # by this process, since it opened the directory
    checkpoints: int = 0
    checkpoint_bytes: int = 0  # of ``bytes``


@dataclass(frozen=True, slots=True)
class StoreState:
    """The few numbers that are there once."""

    generation: str
    budget: int | None
    clock: float
    checkpoint_clock: float
    seq: int
    pins: int


def row_of(row: tuple[Any, ...]) -> Row:
    """What ``COLUMNS`` selects."""
    record = Record(*row[:9])
    fingerprint, hits, last_used, value, file_bytes, pinned, seq = row[9:]
    return Row(record, fingerprint, Use(hits, last_used, value), file_bytes, bool(pinned), seq)
