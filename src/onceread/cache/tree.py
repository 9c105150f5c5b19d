"""The tree of chunks: which prefixes are known, and which chunks to load for one. No state, no tiers.

    root ── [0,256) ─┬─ [256,300) ─┬─ [300,420)
                     │             └─ [300,350)
                     └─ [256,410)

Chunks hang together by names alone: the children of a chunk are those whose parent is the name it ends. So a
chunk may come before its parent, and two that end the same prefix have the same children.

A checkpoint hangs on the prefix it belongs to. It is no child, for nothing is matched against it; but what it hangs
on is no leaf, and is never replaced by something longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from onceread.cache.chunk import Chunk
from onceread.cache.contract import Key
from onceread.cache.cuts import Tokens

Ends = np.ndarray[Any, np.dtype[np.int64]]

_FIRST = 4  # tokens that are compared before the rest is spelled


class Part(NamedTuple):
    """Tokens [start, end) of a path, to be loaded from ``chunk``, which holds them and perhaps more behind."""

    chunk: Chunk
    start: int
    end: int


class Match(NamedTuple):
    """The longest known prefix of some tokens."""

    parts: tuple[Part, ...]
    length: int  # tokens

    @property
    def parting(self) -> Chunk | None:
        """The chunk inside which the tokens part from it or end."""
        if self.parts and self.parts[-1].end < self.parts[-1].chunk.end:
            return self.parts[-1].chunk
        return None


class Checkpoint(NamedTuple):
    """A position that a sequence can go on from: the chunks up to there, and the state that belongs to it."""

    parts: tuple[Part, ...]  # all of [0, length), in whole chunks
    state: Part  # of no tokens, at ``length``
    length: int  # tokens


class ChunkTree:
    """Not thread-safe: the store's lock stands before it."""

    def __init__(self, spelled: list[bytes]) -> None:
        """``spelled``: what each token is in text, see `names.spell`."""
        self._spelled = spelled
        self._lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
        self._chunks: dict[Key, Chunk] = {}
        # By parent, then by first token. More than one chunk has the same first token only where
        # processes cut differently.
        self._children: dict[bytes, dict[int, list[Chunk]]] = {}
        self._ends: dict[bytes, list[Chunk]] = {}  # by the prefix they end
        self._checkpoints: dict[bytes, Chunk] = {}  # by the prefix they belong to

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks.values())

    def get(self, key: Key) -> Chunk | None:
        return self._chunks.get(key)

    def add(self, chunk: Chunk) -> None:
        assert chunk.key not in self._chunks
        self._chunks[chunk.key] = chunk
        if chunk.is_checkpoint:
            self._checkpoints[chunk.parent] = chunk
            return
        siblings = self._children.setdefault(chunk.parent, {})
        siblings.setdefault(int(chunk.array[0]), []).append(chunk)
        self._ends.setdefault(chunk.key.name, []).append(chunk)

    def remove(self, chunk: Chunk) -> None:
        del self._chunks[chunk.key]
        if chunk.is_checkpoint:
            del self._checkpoints[chunk.parent]
            return
        first = int(chunk.array[0])
        siblings = self._children[chunk.parent]
        siblings[first].remove(chunk)
        if not siblings[first]:
            del siblings[first]
        if not siblings:
            del self._children[chunk.parent]
        self._ends[chunk.key.name].remove(chunk)
        if not self._ends[chunk.key.name]:
            del self._ends[chunk.key.name]

    def children(self, name: bytes) -> Iterator[Chunk]:
        """The chunks that continue a prefix."""
        for chunks in self._children.get(name, {}).values():
            yield from chunks

    def following(self, name: bytes) -> Iterator[Chunk]:
        """The chunks that continue a prefix, and its checkpoint."""
        yield from self.children(name)
        if name in self._checkpoints:
            yield self._checkpoints[name]

    def has_children(self, name: bytes) -> bool:
        """Does anything hang on a prefix, be it a checkpoint?"""
        return name in self._children or name in self._checkpoints

    def ending(self, name: bytes) -> Sequence[Chunk]:
        """The chunks that end a prefix."""
        return self._ends.get(name, ())

    def match(self, root: bytes, tokens: Tokens) -> Match:
        """The longest known prefix of ``tokens``, token by token; names alone are never trusted."""
        best: tuple[Part, ...] = ()
        best_length = 0
        for path in self._ways(root, tokens):
            if path[-1].end > best_length:
                best, best_length = path, path[-1].end
        return Match(best, best_length)

    def cover(self, root: bytes, tokens: Tokens) -> tuple[Part, ...] | None:
        """All of ``tokens`` in whole chunks, if they are there."""
        for path in self._ways(root, tokens):
            if path[-1].end == len(tokens) == path[-1].chunk.end:
                return path
        return None

    def checkpoint(self, root: bytes, tokens: Tokens, *, in_ram: bool = False) -> Checkpoint | None:
        """The deepest checkpoint within ``tokens`` up to which all chunks are there; all of it ``in_ram`` if wanted."""
        best: Checkpoint | None = None
        for path in self._ways(root, tokens, in_ram=in_ram):
            last = path[-1]
            state = self._checkpoints.get(last.chunk.key.name)
            if state is None or last.end < last.chunk.end or (in_ram and state.blob is None):
                continue
            if best is None or last.end > best.length:
                best = Checkpoint(path, Part(state, last.end, last.end), last.end)
        return best

    def _ways(self, root: bytes, tokens: Tokens, *, in_ram: bool = False) -> Iterator[tuple[Part, ...]]:
        """Every way to a known prefix of ``tokens``: whole chunks, of the last one perhaps the beginning alone."""
        # Covers may overlap, so that several chunks can lead on. Each prefix is looked at once; all that
        # are reached are prefixes of ``tokens`` and differ by their length alone.
        reached: dict[bytes, tuple[Part, ...]] = {root: ()}
        open_ends: list[tuple[int, bytes]] = [(0, root)]
        while open_ends:
            position, name = open_ends.pop()
            if position >= len(tokens):
                continue
            for chunk in self._children.get(name, {}).get(int(tokens[position]), ()):
                if in_ram and chunk.blob is None:
                    continue
                n = _common(chunk.array, tokens[position:])
                path = (*reached[name], Part(chunk, position, position + n))
                if n == chunk.n and chunk.key.name not in reached:
                    reached[chunk.key.name] = path
                    open_ends.append((chunk.end, chunk.key.name))
                yield path

    def match_text(self, root: bytes, text: bytes, ends: Ends | None = None) -> Tokens:
        """The tokens of the known path that agrees with the longest beginning of ``text``, spelled by `names.spell`.

        With ``ends``, where in ``text`` a prompt's tokens end, agreement counts only up to where a token of the
        path ends too: there the two can be joined, and the path that spells most may have no such place for long.
        The path may go on behind the agreement, to the end of the chunk in which it parts.
        """
        # Where each agreement ends, where its last chunk begins, and its chunks.
        found: list[tuple[int, int, tuple[Chunk, ...]]] = []
        reached: set[bytes] = {root}
        open_ends: list[tuple[int, bytes, tuple[Chunk, ...]]] = [(0, root, ())]
        while open_ends:
            position, name, path = open_ends.pop()
            for chunk in self._spelling_alike(name, text, position):
                # Of a thousand children few agree in more than a word.
                spelled = chunk.spelled or self.spell(chunk.array[:_FIRST])
                if chunk.spelled is None and text.startswith(spelled, position):
                    spelled = chunk.spelled = self.spell(chunk.array)
                n = _common_bytes(spelled, text, position)
                if not n:  # of many siblings most part at once
                    continue
                longer = (*path, chunk)
                found.append((position + n, position, longer))
                if n == len(spelled) and chunk.key.name not in reached:
                    reached.add(chunk.key.name)
                    open_ends.append((position + n, chunk.key.name, longer))
        best: tuple[Chunk, ...] = ()
        best_length = 0
        # The furthest first: the shared ends of most chunks need not be looked for then.
        for agreed, position, path in sorted(found, key=lambda one: one[0], reverse=True):
            if agreed <= best_length:
                break
            if ends is not None:
                agreed = self._last_shared(path[-1], position, agreed, ends)
            if agreed > best_length:
                best, best_length = path, agreed
        return np.concatenate([c.array for c in best]) if best else np.zeros(0, dtype=np.int32)

    def _last_shared(self, chunk: Chunk, position: int, agreed: int, ends: Ends) -> int:
        """The last of ``ends`` up to ``agreed`` at which a token of the chunk ends that begins at ``position``."""
        own = position + self.ends(chunk.array)
        own = own[own <= agreed]
        at = np.searchsorted(ends, own)
        shared = own[(at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] == own)]
        return int(shared[-1]) if len(shared) else 0

    def _spelling_alike(self, name: bytes, text: bytes, position: int) -> Iterator[Chunk]:
        """The children of a prefix that came from text and begin with the byte at ``position``."""
        for first, chunks in self._children.get(name, {}).items():
            if text.startswith(self._spelled[first][:1], position):
                yield from (chunk for chunk in chunks if chunk.text)

    def pieces(self, tokens: Tokens) -> list[bytes]:
        """What each of ``tokens`` is in text."""
        spelled = self._spelled
        return [spelled[t] for t in tokens.tolist()]

    def ends(self, tokens: Tokens) -> Ends:
        """Where in the text of ``tokens`` each of them ends."""
        return np.cumsum(self._lengths[tokens])

    def spell(self, tokens: Tokens) -> bytes:
        """What ``tokens`` are in text."""
        return b"".join(self.pieces(tokens))

    def recent(self, root: bytes, n: int) -> list[Tokens]:
        """The tokens of up to ``n`` paths that nothing goes on from, the last used first."""
        leaves = [c for c in self if c.root == root and c.n and not self._children.get(c.key.name)]
        found: list[Tokens] = []
        for leaf in sorted(leaves, key=lambda c: c.last_used, reverse=True):
            if len(found) == n:
                break
            path = [leaf]
            while path[-1].parent != root and (before := self.ending(path[-1].parent)):
                path.append(before[0])
            if path[-1].parent == root:
                found.append(np.concatenate([chunk.array for chunk in reversed(path)]))
        return found

    def after(self, root: bytes, match: Match, n: int) -> Tokens:
        """How known paths go on behind a match: up to ``n`` tokens of the last used one, none if all end there."""
        found: list[Tokens] = []
        name = root
        if match.parts:
            last = match.parts[-1]
            found.append(last.chunk.array[last.end - last.chunk.start :])
            name = last.chunk.key.name
        while sum(map(len, found)) < n:
            child = max(self.children(name), key=lambda c: c.last_used, default=None)
            if child is None:
                break
            found.append(child.array)
            name = child.key.name
        return np.concatenate(found)[:n] if found else np.zeros(0, dtype=np.int32)


def _common(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _common_bytes(spelled: bytes, text: bytes, position: int) -> int:
    if text.startswith(spelled, position):
        return len(spelled)
    n = min(len(spelled), len(text) - position)
    a = np.frombuffer(spelled, dtype=np.uint8, count=n)
    b = np.frombuffer(text, dtype=np.uint8, count=n, offset=position)
    different = np.flatnonzero(a != b)
    return int(different[0]) if len(different) else n
