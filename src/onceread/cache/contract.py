"""What crosses between the store, its tiers and the rest of the house. All immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

HASH = 32  # bytes of a name, a root, a fingerprint: BLAKE3's usual length
TOKEN = 4  # bytes of a token: int32, little endian
CHUNK = 256  # tokens at most
PINNABLE = 0.9  # of a tier's budget; the rest is for everything else
CHECKPOINTS = 0.5  # of a tier's budget is what all checkpoints together may take
MIN_MEMORY = 64 * 1024**2  # bytes of the tier in RAM; it also holds what waits to be written


class Key(NamedTuple):
    """A chunk's address: the name of the prefix it ends, and the position it starts at.

    Two chunks may end the same prefix and start at different positions (two processes cut differently, or
    one was just split): overlapping covers are legal, and either serves.

    A checkpoint is addressed by a name of its own (`names.checkpoint_name`) and the position it belongs to.
    """

    name: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Record:
    """A chunk without its blob: what its file's header says and what the index repeats.

    A checkpoint is a chunk of no tokens: its blob is what a sequence needs, beside the chunks up to its position,
    to go on from there. It continues the prefix that it belongs to, and nothing continues it.
    """

    root: bytes  # the name of the empty prefix, which the fingerprint and the namespace make
    namespace: bytes  # HASH bytes, see names.py
    name: bytes  # the prefix that the chunk ends
    parent: bytes  # the prefix that it continues; the root's name where start is 0
    start: int  # the position of its first token
    tokens: bytes  # int32, little endian
    spelled: bytes  # the bytes of its tokens in a row; control tokens as 0xFF and their id (see names.py)
    lengths: bytes = b""  # for each token how many of ``spelled`` are its: uint16, little endian. Files only
    reach: int = 0  # of a checkpoint: tokens back to the next lower one on its path, which it saves reading

    @property
    def key(self) -> Key:
        return Key(self.name, self.start)

    @property
    def is_checkpoint(self) -> bool:
        return not self.tokens

    @property
    def saved(self) -> tuple[int, int]:
        """(position, number) of the tokens that need not be read since it is there."""
        return (self.start - self.reach, self.reach) if self.is_checkpoint else (self.start, self.n)

    @property
    def n(self) -> int:
        return len(self.tokens) // TOKEN

    @property
    def end(self) -> int:
        return self.start + self.n


@dataclass(frozen=True, slots=True)
class Use:
    """How much a chunk was used and what it is worth. ``value`` is value.py's; a tier adds its own age to it."""

    hits: int  # requests that used it, the one that read it included
    last_used: float  # Unix time
    value: float


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that is kept whatever happens."""

    id: str  # hex digits
    name: str  # what the user calls it
    fingerprint: bytes
    namespace: bytes
    root: bytes
    tokens: bytes  # int32, little endian: the whole prefix, from position 0
    created: float  # Unix time
    bytes: int = 0  # what its chunks take, filled in where it is listed

    @property
    def n(self) -> int:
        return len(self.tokens) // TOKEN


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier, now and since the start."""

    state: str = "off"  # "ok", "off" or "failed: why"
    budget: int = 0  # bytes
    bytes: int = 0  # as they really lie there
    pinned_bytes: int = 0
    chunks: int = 0  # without checkpoints
    tokens: int = 0
    hit_tokens_total: int = 0  # prompt tokens that came from it
    evictions_total: int = 0  # checkpoints included
    damaged_total: int = 0  # chunks and checkpoints that were there and could not be used
    checkpoints: int = 0
    checkpoint_bytes: int = 0  # of ``bytes``; at most CHECKPOINTS of the budget


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The store, now and since the start."""

    memory: TierStats = field(default_factory=TierStats)
    disk: TierStats = field(default_factory=TierStats)
    shared: TierStats = field(default_factory=TierStats)
    unwritten_bytes: int = 0  # in RAM, and to be written to disk
    oldest_unwritten_s: float = 0.0
    exported_chunks_total: int = 0
    refused_chunks_total: int = 0  # had no room: larger than the budget, or all of it is pinned or unwritten
    split_chunks_total: int = 0
    exported_checkpoints_total: int = 0
    refused_checkpoints_total: int = 0  # had no room in RAM


@dataclass(frozen=True, slots=True)
class PathInfo:
    """One path through the tree, from its root to a leaf."""

    id: str  # hex: the name of the prefix that it is
    namespace: str  # hex, shortened
    model: str  # label of the model
    tokens: int
    own_tokens: int  # that no other path shares
    text: str  # where its own part begins, or its beginning if it shares nothing; control tokens left out
    tail: str  # its last words
    bytes_memory: int  # of its own part
    bytes_disk: int
    tiers: tuple[str, ...]  # where all of it can be had from: "memory", "disk"
    last_used: float  # Unix time
    hits: int
    pins: tuple[str, ...] = ()  # names


@dataclass(frozen=True, slots=True)
class PathPage:
    """Part of a listing, the last used first."""

    paths: tuple[PathInfo, ...]
    total: int
    next: str | None = None  # give it as ``after`` to go on


class SharedTier(Protocol):
    """A seam: an object store that several machines share. Nothing in this version fills it."""

    def get(self, name: bytes, start: int) -> bytes | None:
        """A chunk's file, as the disk tier writes it."""
        ...

    def put(self, name: bytes, start: int, file: bytes) -> None: ...

    def children(self, parent: bytes) -> list[Key]:
        """The chunks that continue a prefix."""
        ...
