"""The store as the rest of the house sees it: what is known of a prompt, what to keep, what to give back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from onceread.cache.checkpoints import Checkpoints
from onceread.cache.chunk import Chunk
from onceread.cache.contract import CacheStats, Key, PathPage, Pin, TierStats
from onceread.cache.cuts import Cutter, Tokens
from onceread.cache.disk import DiskTier
from onceread.cache.disk_side import DiskSide
from onceread.cache.errors import DiskUnusable
from onceread.cache.fetch import Fetch
from onceread.cache.holdings import Cut, Holdings
from onceread.cache.listing import Node, page, path_named
from onceread.cache.names import namespace_id, prefix_name, root_name
from onceread.cache.pinning import Pinning
from onceread.cache.tree import Checkpoint, Match, Part

logger = logging.getLogger(__name__)


class Store:
    """One tree of chunks over RAM and disk, for one model. Thread-safe; no call waits for the disk but close().

    ``spelled``: what each token is in text (`names.spell`). ``cut`` splits a blob after so many tokens.
    ``disk_problem`` says why there is no disk although there should be. ``wake`` is called, on any thread,
    when a fetch is done. ``checkpointed``: sequences of this model can go on at checkpoints only, so that chunks are
    worth nothing without one.
    """

    def __init__(
        self,
        *,
        fingerprint: bytes,
        label: str,
        spelled: list[bytes],
        cutter: Cutter,
        cut: Cut,
        memory_bytes: int,
        disk: DiskTier | None = None,
        disk_problem: str | None = None,
        wake: Callable[[], None] = lambda: None,
        checkpointed: bool = False,
    ) -> None:
        self.fingerprint = fingerprint
        self.label = label
        self._cutter = cutter
        self._holdings = Holdings(spelled, memory_bytes, cut, checkpointed=checkpointed)
        self._lock = self._holdings.lock
        self._tree = self._holdings.tree
        self._memory = self._holdings.memory
        self._roots: dict[bytes, bytes] = {}
        self._grown = threading.Condition(self._lock)
        self._exported = self._split = 0
        self._disk_problem = disk_problem
        self._disk = DiskSide(disk, self._holdings, wake) if disk is not None else None
        self._pinning = Pinning(fingerprint, self._holdings, self._disk)
        self._checkpoints = Checkpoints(self._holdings, self._disk, self._pinning, self._split_at)
        if self._disk is not None:
            try:
                self._disk.read_index()
            except DiskUnusable as error:
                self._disk.fail(str(error), reading=True)

    # -- looking up --------------------------------------------------------

    def match(self, namespace: str | bytes, tokens: Tokens) -> Match:
        """The longest known prefix of ``tokens``, and the chunks that hold it."""
        with self._lock:
            return self._tree.match(self._root(namespace), tokens)

    def checkpoint(self, namespace: str | bytes, tokens: Tokens) -> Checkpoint | None:
        """The deepest position within ``tokens`` that a sequence can go on from, and what to load for that."""
        with self._lock:
            return self._checkpoints.deepest(self._root(namespace), tokens)

    def match_text(self, namespace: str | bytes, text: bytes) -> Tokens:
        """The tokens of the known path whose text agrees longest with ``text``; see `ChunkTree.match_text`."""
        with self._lock:
            return self._tree.match_text(self._root(namespace), text)

    def match_spelling(self, namespace: str | bytes, tokens: Tokens) -> Tokens:
        """The tokens of the known path that ``tokens`` can be joined to furthest behind, by what both spell."""
        text, ends = self._tree.spell(tokens), self._tree.ends(tokens)
        with self._lock:
            return self._tree.match_text(self._root(namespace), text, ends)

    def spell(self, tokens: Tokens) -> bytes:
        """Tokens as text for :meth:`match_text`."""
        return self._tree.spell(tokens)

    def goes_on(self, namespace: str | bytes, tokens: Tokens, n: int) -> tuple[int, Tokens]:
        """How much of ``tokens`` is known, and up to ``n`` tokens with which the known path goes on."""
        with self._lock:
            root = self._root(namespace)
            match = self._tree.match(root, tokens)
            return match.length, self._tree.after(root, match, n)

    def recent(self, namespace: str | bytes, n: int) -> list[Tokens]:
        """The tokens of up to ``n`` whole paths, the last used first."""
        with self._lock:
            return self._tree.recent(self._root(namespace), n)

    def use(self, namespace: str | bytes, tokens: Tokens, *, text: bool) -> None:
        """A request uses ``tokens``, wherever they come from: what holds them is worth more now.

        So is the checkpoint that serves: the deepest one before the last token, which is always evaluated.
        ``text`` says that the request gave them as text.
        """
        now = time.time()
        with self._lock:
            root = self._root(namespace)
            chunks = [part.chunk for part in self._tree.match(root, tokens).parts]
            serving = self._checkpoints.deepest(root, tokens[:-1])
            if serving is not None:
                chunks.append(serving.state.chunk)
            for chunk in chunks:
                chunk.hits += 1
                chunk.last_used = now
                chunk.text |= text
                self._memory.use(chunk)
            if self._disk is not None:
                self._disk.touch(chunks)

    def refresh(self, timeout: float = 0.25) -> None:
        """Take in what other processes wrote to the directory. Waits no longer than ``timeout`` seconds."""
        if self._disk is not None:
            self._disk.refresh(timeout)

    # -- keeping -----------------------------------------------------------

    def gap(
        self, namespace: str | bytes, tokens: Tokens, *, final: bool, cuts: Sequence[int] = ()
    ) -> tuple[int, int] | None:
        """The first stretch of ``tokens`` that is not stored and is to be, as positions; None if there is none.

        While a sequence grows (not ``final``) only whole chunks are stored, so that none is written twice. Chunks
        also end at ``cuts``: positions in ascending order, where checkpoints are to be.
        """
        with self._lock:
            match = self._tree.match(self._root(namespace), tokens)
            if self._disk is not None and not self._disk.readable:
                lacking = next((part for part in match.parts if part.chunk.blob is None), None)
                if lacking is not None:  # it lies where nobody can read it: keep it in RAM meanwhile
                    whole = lacking.end == lacking.chunk.end
                    return (lacking.chunk.start, lacking.end) if whole else None
            if match.length == len(tokens):
                return None
            start = match.length
            if match.parts and match.parting is None:
                last = match.parts[-1].chunk
                end = self._cutter.end(tokens, last.start, final=final, cuts=cuts)
                if self._may_grow(last) and (end is None or end > last.end):
                    start = last.start
            end = self._cutter.end(tokens, start, final=final, cuts=cuts)
            return None if end is None else (start, end)

    def _may_grow(self, chunk: Chunk) -> bool:
        return not chunk.leases and not self._tree.has_children(chunk.key.name)

    def put(
        self, namespace: str | bytes, tokens: Tokens, start: int, end: int, blob: bytes, *, text: bool = True
    ) -> bool:
        """Keep the state of positions [start, end) of ``tokens``, a gap that :meth:`gap` named.

        False if it could not be kept: no room, or what comes before it is not there any more.
        """
        with self._lock:
            root = self._root(namespace)
            match = self._tree.match(root, tokens[:end])
            if match.length >= end:
                return self._give_back(Key(prefix_name(root, tokens[:end].tobytes()), start), blob)
            parting = match.parting
            if parting is not None and match.length == start and parting.start < start:
                self._split_at(parting, start, tokens)
            parent = prefix_name(root, tokens[:start].tobytes()) if start else root
            if start and not self._tree.ending(parent):
                return False
            key = Key(prefix_name(root, tokens[:end].tobytes()), start)
            if self._tree.get(key) is not None:
                return True
            chunk = self._holdings.chunk(root, parent, key, tokens[start:end].tobytes(), text=text)
            shorter = [
                c
                for c in self._tree.children(parent)
                if chunk.tokens.startswith(c.tokens) and self._may_grow(c)
            ]
            self._holdings.resume(chunk)
            for old in shorter:
                chunk.hits = max(chunk.hits, old.hits)
                chunk.occasions = max(chunk.occasions, old.occasions)
                chunk.counted = max(chunk.counted, old.counted)
                chunk.pinned |= old.pinned
            self._tree.add(chunk)
            if not self._holdings.hold(chunk, blob):
                self._holdings.remove(chunk)
                self._holdings.refused += 1
                return False
            for old in shorter:
                self._holdings.remove(old)
            self._exported += 1
            if self._disk is not None:
                self._disk.write(chunk, replaces=[old.key for old in shorter if old.file_bytes])
            self._grown.notify_all()
            return True

    def room_for_checkpoint(self, namespace: str | bytes, tokens: Tokens, size: int) -> bool:
        """Make room in RAM for a checkpoint of ``size`` bytes at the end of ``tokens``, before it is taken.

        False if there is one already, or there can't be room: it would take more than half of the budget with
        those that must stay.
        """
        with self._lock:
            return self._checkpoints.room(self._root(namespace), tokens, size)

    def put_checkpoint(
        self, namespace: str | bytes, tokens: Tokens, blob: bytes, *, reach: int, text: bool = True
    ) -> bool:
        """Keep the state from which a sequence can go on at the end of ``tokens``, all of which must be stored.

        ``reach``: tokens back to the nearest lower checkpoint of the path, or to its beginning. False if it could
        not be kept.
        """
        with self._lock:
            return self._checkpoints.put(self._root(namespace), tokens, blob, reach, text=text)

    def _give_back(self, key: Key, blob: bytes) -> bool:
        """Something known is read again, for it could not be had from disk."""
        chunk = self._tree.get(key)
        return chunk is None or chunk.blob is not None or self._holdings.hold(chunk, blob)

    def _split_at(self, chunk: Chunk, at: int, tokens: Tokens) -> None:
        middle = prefix_name(chunk.root, tokens[:at].tobytes())
        waits = chunk.queued > 0
        halves = self._holdings.split(chunk, at, middle)
        if halves is None:
            self._holdings.refused += 1
            return
        head, tail, file = halves
        self._split += 1
        if self._disk is None:
            return
        if file is not None:
            self._disk.split(file, head, tail)
        elif waits:
            self._disk.write(head)
            self._disk.write(tail)

    def wait_stored(self, namespace: str | bytes, tokens: Tokens, timeout: float) -> bool:
        """Wait until all of ``tokens`` are stored."""
        with self._grown:
            return self._grown.wait_for(lambda: self.match(namespace, tokens).length == len(tokens), timeout)

    def wait_written(self, timeout: float) -> bool:
        """Wait until the disk has all it is to have."""
        return self._disk is None or self._disk.wait_written(timeout)

    # -- giving back -------------------------------------------------------

    def fetch(self, part: Part) -> Fetch:
        """Begin to load a chunk. Its blob holds the chunk's tokens, of which ``part`` may want fewer."""
        chunk = part.chunk
        with self._lock:
            chunk.leases += 1
            if chunk.blob is not None:
                fetch = Fetch(chunk, "memory")
                fetch.finish(chunk.blob)
                return fetch
            fetch = Fetch(chunk, "disk")
            if self._disk is None or not chunk.file_bytes:
                fetch.finish(None)  # it went away since it was planned
            else:
                self._disk.read(fetch)
            return fetch

    def close_fetch(self, fetch: Fetch, used: int) -> None:
        """The engine is done with a fetch, of which it took ``used`` tokens."""
        with self._lock:
            fetch.wanted = False
            fetch.chunk.leases -= 1
            if fetch.source == "memory":
                self._memory.hit_tokens += used
            elif self._disk is not None:
                self._disk.hit_tokens += used
        fetch.blob = None

    def spoil(self, chunk: Chunk) -> None:
        """A chunk is not the state that it should be: forget it in every tier."""
        with self._lock:
            on_disk = chunk.file_bytes > 0
            key = chunk.file.key if chunk.file is not None else chunk.key
            self._holdings.remove(chunk)
            self._holdings.spoiled += 1
        if on_disk and self._disk is not None:
            self._disk.remove([key])

    def stuck(self, seconds: float) -> bool:
        """Has the disk been reading one chunk for longer than ``seconds``? Then nothing is read until it is back."""
        return self._disk is not None and self._disk.stuck(seconds)

    # -- pins --------------------------------------------------------------

    def pin(self, namespace: str | bytes, tokens: Tokens, name: str) -> Pin:
        """Never evict the state of ``tokens``. Raises PathUnknown if not all is stored, PinRefused for lack of room."""
        with self._lock:
            root = self._root(namespace)
        return self._pinning.add(root, tokens, name)

    def unpin(self, pin_id: str, namespaces: Collection[bytes] | None) -> bool:
        """Let a pin go, by its id or the beginning of one. False if there is none, or more than one."""
        return self._pinning.remove(pin_id, namespaces)

    def pins(self, namespaces: Collection[bytes] | None) -> list[Pin]:
        """The pins of these namespaces, or all."""
        self.refresh()
        return self._pinning.listed(namespaces)

    # -- showing, clearing -------------------------------------------------

    def stats(self) -> CacheStats:
        """How things stand, and the totals since the start."""
        with self._lock:
            in_memory = sum(len(c.blob) for c in self._tree if c.pinned and c.blob is not None)
            waiting = self._disk.waiting() if self._disk is not None else (0, 0.0)
            disk = self._disk
            stats = CacheStats(
                memory=replace(self._memory.stats(in_memory), damaged_total=self._holdings.spoiled),
                unwritten_bytes=waiting[0],
                oldest_unwritten_s=waiting[1],
                exported_chunks_total=self._exported,
                refused_chunks_total=self._holdings.refused,
                split_chunks_total=self._split,
                exported_checkpoints_total=self._checkpoints.exported,
                refused_checkpoints_total=self._holdings.refused_checkpoints,
            )
        if disk is not None:
            return replace(stats, disk=disk.stats())
        return replace(
            stats, disk=TierStats("off" if not self._disk_problem else f"failed: {self._disk_problem}")
        )

    def paths(self, namespaces: Collection[bytes] | None, limit: int, after: str | None = None) -> PathPage:
        """The paths of these namespaces, or all; the last used first."""
        self.refresh()
        return page(self._nodes(namespaces), self.pins(namespaces), limit, after)

    def find(self, path_id: str, namespaces: Collection[bytes] | None) -> tuple[bytes, Tokens]:
        """(namespace, tokens) of the path with this id, or with a unique beginning of it. Raises PathUnknown."""
        node, tokens = path_named(self._nodes(namespaces), path_id)
        return node.namespace, tokens

    def _nodes(self, namespaces: Collection[bytes] | None) -> list[Node]:
        with self._lock:
            return [
                Node(
                    key=chunk.key,
                    parent=chunk.parent,
                    root=chunk.root,
                    namespace=self._holdings.namespaces[chunk.root],
                    model=self.label,
                    tokens=chunk.tokens,
                    bytes_memory=len(chunk.blob) if chunk.blob is not None else 0,
                    bytes_disk=chunk.file_bytes,
                    hits=chunk.hits,
                    last_used=chunk.last_used,
                    spell=self._tree.spell,
                )
                for chunk in self._tree
                if namespaces is None or self._holdings.namespaces[chunk.root] in namespaces
            ]

    def clear(self, namespaces: Collection[str] | None) -> int:
        """Forget what these namespaces stored, or everything this model did. Pins go too. The bytes freed."""
        ids = None if namespaces is None else {namespace_id(namespace) for namespace in namespaces}
        with self._lock:
            freed = 0
            for chunk in list(self._tree):
                if ids is None or self._holdings.namespaces[chunk.root] in ids:
                    freed += len(chunk.blob) if chunk.blob is not None else 0
                    self._holdings.remove(chunk)
            self._holdings.past.clear()
            self._pinning.cleared(ids)
        if self._disk is not None:
            freed += self._disk.clear(ids)
        return freed

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits to be written, within ``timeout`` seconds, and end the threads."""
        if self._disk is not None:
            self._disk.close(timeout)

    def _root(self, namespace: str | bytes) -> bytes:
        identity = namespace_id(namespace) if isinstance(namespace, str) else namespace
        root = self._roots.get(identity)
        if root is None:
            root = root_name(self.fingerprint, identity)
            self._roots[identity] = root
            self._holdings.namespaces[root] = identity
        return root
