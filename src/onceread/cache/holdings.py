"""What the store holds just now: the tree and the memory tier, behind one lock, and the rules that join them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np

from onceread.cache.chunk import Chunk
from onceread.cache.contract import TOKEN, Key, Record
from onceread.cache.memory import MemoryTier
from onceread.cache.names import NOT_TEXT
from onceread.cache.tree import ChunkTree

_PAST = 1000  # chunks that went away and are known still, beside as many as are there

Cut = Callable[[bytes, int], tuple[bytes, bytes]]
"""Splits a blob after so many tokens."""


class Holdings:
    """Every method but :meth:`cut` wants the lock held."""

    def __init__(
        self, spelled: list[bytes], memory_bytes: int, cut: Cut, *, checkpointed: bool = False
    ) -> None:
        self.checkpointed = checkpointed
        self.lock = threading.RLock()
        self.tree = ChunkTree(spelled)
        self.memory = MemoryTier(memory_bytes, self.tree)
        self.namespaces: dict[bytes, bytes] = {}  # by root
        self.cut = cut
        self.keep_unwritten = False  # is there a disk that will take what waits for it?
        self.refused = 0
        self.refused_checkpoints = 0
        self.spoiled = 0
        # How often what went away was used, and when last (see Chunk): so that what is read again and again
        # but never stays long enough to be found is told from what is read once.
        self.past: dict[Key, tuple[int, float]] = {}

    def chunk(
        self, root: bytes, parent: bytes, key: Key, tokens: bytes, *, text: bool, reach: int = 0
    ) -> Chunk:
        """One that is not in the tree yet; without tokens, a checkpoint."""
        bare = self.checkpointed and bool(tokens)
        return Chunk(root, parent, key, tokens, text=text, reach=reach, bare=bare)

    def hold(self, chunk: Chunk, blob: bytes) -> bool:
        """Keep a blob in RAM if there is room for it."""
        room = self.memory.put(chunk, blob, keep_unwritten=self.keep_unwritten)
        self.forget(room.victims)
        return room.made

    def make_checkpoint_room(self, size: int, parent: bytes, keep: Iterable[Chunk]) -> bool:
        """For a checkpoint of ``size`` bytes at the end of the prefix ``parent``, which ``keep`` hold."""
        kept = list(keep)
        for chunk in kept:
            chunk.leases += 1
        room = self.memory.make_checkpoint_room(size, parent, keep_unwritten=self.keep_unwritten)
        for chunk in kept:
            chunk.leases -= 1
        self.forget(room.victims)
        return room.made

    def forget(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks out of the tree whose state is nowhere any more."""
        for chunk in chunks:
            if chunk.gone and self.tree.get(chunk.key) is chunk:
                self.tree.remove(chunk)
                self.past[chunk.key] = chunk.occasions, chunk.counted
        while len(self.past) > len(self.tree) + _PAST:
            del self.past[next(iter(self.past))]

    def resume(self, chunk: Chunk) -> None:
        """A chunk is new, or back."""
        chunk.occasions, chunk.counted = self.past.pop(chunk.key, (1, self.memory.taken_in))

    def remove(self, chunk: Chunk) -> None:
        """Give a chunk up in RAM and in the tree. Its file, if it has one, is the caller's to remove."""
        if chunk.blob is not None:
            self.memory.drop(chunk)
        if self.tree.get(chunk.key) is chunk:
            self.tree.remove(chunk)

    def lose_file(self, key: Key) -> bool:
        """A file is gone: whatever lay in it and is not in RAM is gone too. False if nothing did."""
        chunk = self.tree.get(key)
        lost = [chunk] if chunk is not None and chunk.file is None else []
        lost += [c for c in self.tree if c.file is not None and c.file.key == key]
        for one in lost:
            one.file, one.file_bytes = None, 0
        self.forget(lost)
        return bool(lost)

    def record(self, chunk: Chunk) -> Record:
        """What the chunk's own file says, or is to say."""
        pieces = self.tree.pieces(chunk.array)
        if pieces and not chunk.text:
            pieces[0] = NOT_TEXT + pieces[0]
        return Record(
            root=chunk.root,
            namespace=self.namespaces[chunk.root],
            name=chunk.key.name,
            parent=chunk.parent,
            start=chunk.start,
            tokens=chunk.tokens,
            spelled=b"".join(pieces),
            lengths=np.asarray([len(piece) for piece in pieces], dtype="<u2").tobytes(),
            reach=chunk.reach,
        )

    def _has_room(self, chunk: Chunk, size: int) -> bool:
        """Is there room for two chunks of together ``size`` bytes in place of this one?"""
        room = self.memory.widen(chunk, size, keep_unwritten=self.keep_unwritten)
        self.forget(room.victims)
        return room.made

    def split(self, chunk: Chunk, at: int, middle: bytes) -> tuple[Chunk, Chunk, Record | None] | None:
        """Replace a chunk by two that meet at position ``at``, the end of the prefix named ``middle``.

        No descendant changes: the second half still ends where the whole did, under the same name. Both
        lie in the file of the whole until they have files of their own: its record comes third, if there is one.
        None, and nothing has changed, if there is no room: two take a little more than one.
        """
        cut = (at - chunk.start) * TOKEN
        halves = (
            self.chunk(
                chunk.root, chunk.parent, Key(middle, chunk.start), chunk.tokens[:cut], text=chunk.text
            ),
            self.chunk(chunk.root, middle, Key(chunk.key.name, at), chunk.tokens[cut:], text=chunk.text),
        )
        file = chunk.file or (self.record(chunk) if chunk.file_bytes else None)
        blobs = self.cut(chunk.blob, at - chunk.start) if chunk.blob is not None else (None, None)
        if blobs[0] is not None and not self._has_room(chunk, sum(map(len, blobs))):
            if file is None:
                return None
            blobs = None, None  # they lie on disk
        self.remove(chunk)
        for half in halves:
            half.hits, half.last_used, half.pinned = chunk.hits, chunk.last_used, chunk.pinned
            half.occasions, half.counted = chunk.occasions, chunk.counted
            half.file = file
            half.file_bytes = chunk.file_bytes * half.n // chunk.n
        made = []
        for half, blob in zip(halves, blobs, strict=True):
            known = self.tree.get(half.key)  # from another process that cut here already
            if known is None:
                self.tree.add(half)
                known = half
            if blob is not None and known.blob is None and not self.hold(known, blob):
                self.refused += 1
            made.append(known)
        self.forget(made)
        return made[0], made[1], file
