"""What can go wrong in the store. None of it ever reaches a reply: a chunk that can't be had is read again."""

from __future__ import annotations


class CacheError(Exception):
    """Base of all."""


class ChunkGone(CacheError):
    """The file is not there: another process evicted it, or somebody removed it. A plain miss."""


class ChunkDamaged(CacheError):
    """The file is there and is not what it should be: torn, flipped, foreign, of another format."""


class DiskUnusable(CacheError):
    """The directory can't be used: full, read-only, gone, no permission. The message says which, in one line."""


class PinRefused(CacheError):
    """A pin does not fit into its tier's budget. The message has the figures."""


class PathUnknown(CacheError):
    """No stored path has this id."""


class NoRoom(CacheError):
    """A chunk does not fit: it is larger than the budget, or all that could make room for it is pinned."""
