"""Checkpoints in the store: the states that a sequence goes on from, where a model's memory can't be cut anywhere."""

from __future__ import annotations

from collections.abc import Callable

from onceread.cache.chunk import Chunk
from onceread.cache.contract import Key
from onceread.cache.cuts import Tokens
from onceread.cache.disk_side import DiskSide
from onceread.cache.holdings import Holdings
from onceread.cache.names import checkpoint_name, prefix_name
from onceread.cache.pinning import Pinning
from onceread.cache.tree import Checkpoint

Split = Callable[[Chunk, int, Tokens], None]
"""Splits a chunk at a position of the tokens, if there is room for that."""


class Checkpoints:
    """Every method wants the store's lock held."""

    def __init__(self, holdings: Holdings, disk: DiskSide | None, pinning: Pinning, split: Split) -> None:
        self._holdings = holdings
        self._tree = holdings.tree
        self._disk = disk
        self._pinning = pinning
        self._split = split
        self.exported = 0

    def deepest(self, root: bytes, tokens: Tokens) -> Checkpoint | None:
        """The deepest one within ``tokens`` that can be had, as far as is known."""
        return self._tree.checkpoint(root, tokens, in_ram=not self._readable)

    def room(self, root: bytes, tokens: Tokens, size: int) -> bool:
        """Make room for one at the end of ``tokens``. False if there is one or there can't be room."""
        name = prefix_name(root, tokens.tobytes())
        known = self._tree.get(Key(checkpoint_name(name), len(tokens)))
        if not len(tokens) or (known is not None and (known.blob is not None or self._readable)):
            return False
        return self._make_room(root, tokens, name, size)

    def put(self, root: bytes, tokens: Tokens, blob: bytes, reach: int, *, text: bool) -> bool:
        """Keep one at the end of ``tokens``, all of which must be stored. False if it could not be kept."""
        assert 0 < reach <= len(tokens)
        name = prefix_name(root, tokens.tobytes())
        key = Key(checkpoint_name(name), len(tokens))
        known = self._tree.get(key)
        if known is None:
            if not self._ends_here(root, tokens):
                return False
        elif known.blob is not None:
            return True
        if not self._make_room(root, tokens, name, len(blob)):
            return False
        if known is not None:  # it could not be had from disk
            return self._holdings.hold(known, blob)
        chunk = self._holdings.chunk(root, name, key, b"", text=text, reach=reach)
        self._holdings.resume(chunk)
        self._tree.add(chunk)
        held = self._holdings.hold(chunk, blob)
        assert held, "there was room"
        self.exported += 1
        self._pinning.checkpoint_came(root)
        if self._disk is not None:
            self._disk.write(chunk)
        return True

    def _ends_here(self, root: bytes, tokens: Tokens) -> bool:
        """Does a chunk end with ``tokens``, perhaps once one that goes on is split?"""
        if self._tree.cover(root, tokens) is None:
            match = self._tree.match(root, tokens)
            if match.length < len(tokens) or match.parting is None:
                return False
            self._split(match.parting, len(tokens), tokens)
        return self._tree.cover(root, tokens) is not None

    def _make_room(self, root: bytes, tokens: Tokens, name: bytes, size: int) -> bool:
        # A chunk that goes on behind the position is no parent of the checkpoint yet, but will be.
        keep = [part.chunk for part in self._tree.match(root, tokens).parts]
        made = self._holdings.make_checkpoint_room(size, name, keep)
        self._holdings.refused_checkpoints += not made
        return made

    @property
    def _readable(self) -> bool:
        return self._disk is None or self._disk.readable
