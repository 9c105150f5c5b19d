"""The tree for people: its paths, from a root to a leaf, with a little of their text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onceread.cache.contract import TOKEN, Key, PathInfo, PathPage, Pin
from onceread.cache.cuts import Tokens
from onceread.cache.errors import PathUnknown
from onceread.cache.names import readable

ID_DIGITS = 12
MIN_ID = 6
_HEAD = 24  # tokens of which a listing shows the text
_TEXT = 80  # characters


@dataclass(frozen=True, slots=True)
class Node:
    """A chunk, as a listing sees it; without tokens, a checkpoint."""

    key: Key
    parent: bytes
    root: bytes
    namespace: bytes
    model: str
    tokens: bytes
    bytes_memory: int
    bytes_disk: int
    hits: int
    last_used: float
    spell: Callable[[Tokens], bytes]  # the bytes of some of its tokens

    @property
    def n(self) -> int:
        return len(self.tokens) // TOKEN

    @property
    def array(self) -> Tokens:
        return np.frombuffer(self.tokens, dtype=np.int32)


class _Forest:
    def __init__(self, nodes: Iterable[Node]) -> None:
        every = list(nodes)
        self.nodes = [node for node in every if node.n]
        self.checkpoints = {(node.root, node.parent): node for node in every if not node.n}
        self.ending: dict[tuple[bytes, bytes], Node] = {}
        self.children: defaultdict[bytes, int] = defaultdict(int)
        for node in self.nodes:
            self.children[node.parent] += 1
            known = self.ending.get((node.root, node.key.name))
            if known is None or node.key.start < known.key.start:
                self.ending[node.root, node.key.name] = node

    def path(self, leaf: Node) -> list[Node] | None:
        """From the root to ``leaf``; None if a part of the way is missing."""
        found = [leaf]
        while found[-1].parent != found[-1].root:
            before = self.ending.get((leaf.root, found[-1].parent))
            if before is None:
                return None
            found.append(before)
        return found[::-1]

    def bytes_of(self, path: list[Node], tier: Literal["memory", "disk"]) -> int:
        """What the chunks and the checkpoints of (a part of) a path take."""
        at_ends = (self.checkpoints.get((node.root, node.key.name)) for node in path)
        held = [*path, *(node for node in at_ends if node is not None)]
        return sum(node.bytes_memory if tier == "memory" else node.bytes_disk for node in held)

    def leaves(self) -> Iterable[Node]:
        for (_, name), node in self.ending.items():
            if not self.children.get(name):
                yield node


def page(nodes: Iterable[Node], pins: Sequence[Pin], limit: int, after: str | None = None) -> PathPage:
    """The paths among ``nodes``, the last used first: up to ``limit`` of them behind the one with the id ``after``."""
    forest = _Forest(nodes)
    paths = [path for leaf in forest.leaves() if (path := forest.path(leaf)) is not None]
    paths.sort(key=lambda path: (-path[-1].last_used, path[-1].key.name))
    first = 0
    if after is not None:
        ids = [_id(path[-1]) for path in paths]
        if after not in ids:
            raise PathUnknown("the path that the page was to begin behind is not there any more: begin anew")
        first = ids.index(after) + 1
    shown = paths[first : first + limit]
    return PathPage(
        paths=tuple(_info(path, forest, pins) for path in shown),
        total=len(paths),
        next=_id(shown[-1][-1]) if shown and first + limit < len(paths) else None,
    )


def path_named(nodes: Iterable[Node], path_id: str) -> tuple[Node, Tokens]:
    """The last chunk and all tokens of the path with this id, or a unique beginning of it. Raises PathUnknown."""
    if len(path_id) < MIN_ID:
        raise PathUnknown(f"an id has {MIN_ID} hex digits or more, not {path_id!r}")
    forest = _Forest(nodes)
    found = [node for node in forest.ending.values() if node.key.name.hex().startswith(path_id.lower())]
    if len(found) > 1:
        raise PathUnknown(f"{len(found)} paths begin with {path_id!r}: give more digits")
    path = forest.path(found[0]) if found else None
    if path is None:
        raise PathUnknown(f"no path with the id {path_id!r}")
    return found[0], np.concatenate([node.array for node in path])


def _id(node: Node) -> str:
    return node.key.name.hex()[:ID_DIGITS]


def _info(path: list[Node], forest: _Forest, pins: Sequence[Pin]) -> PathInfo:
    leaf = path[-1]
    own = len(path) - 1
    while own > 0 and forest.children[path[own].parent] == 1:
        own -= 1
    mine = path[own:]
    tokens = b"".join(node.tokens for node in path)
    held = (("memory", [n.bytes_memory for n in path]), ("disk", [n.bytes_disk for n in path]))
    return PathInfo(
        id=_id(leaf),
        namespace=leaf.namespace.hex()[:ID_DIGITS],
        model=leaf.model,
        tokens=len(tokens) // TOKEN,
        own_tokens=sum(node.n for node in mine),
        text=_text(mine, first=True),
        tail=_text(mine, first=False),
        bytes_memory=forest.bytes_of(mine, "memory"),
        bytes_disk=forest.bytes_of(mine, "disk"),
        tiers=tuple(tier for tier, sizes in held if all(sizes)),
        last_used=leaf.last_used,
        hits=leaf.hits,
        pins=tuple(pin.name for pin in pins if pin.root == leaf.root and tokens.startswith(pin.tokens)),
    )


def _text(path: list[Node], *, first: bool) -> str:
    tokens = path[0].array[:_HEAD] if first else path[-1].array[-_HEAD:]
    node = path[0] if first else path[-1]
    text = " ".join(readable(node.spell(tokens)).split())
    return text[:_TEXT] if first else text[-_TEXT:]
