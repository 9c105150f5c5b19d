"""A conversation as a tree: every message but the first answers one, and some have several answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant"]


class SessionError(ValueError):
    """What a session can't do, or a file that is none. The message is one line."""


@dataclass(frozen=True, slots=True)
class Node:
    """One message. ``id`` counts from 1; a parent's is smaller than its children's."""

    id: int
    parent: int | None
    role: Role
    content: str
    partial: bool = False  # a reply that was stopped


@dataclass(frozen=True, slots=True)
class Branch:
    """One way through the tree, named by the message that it ends with (0: before the first)."""

    id: int
    messages: int  # how many
    text: str  # of the last one
    current: bool


class MessageTree:
    """Nodes and a head, the message where the conversation stands."""

    def __init__(self, nodes: Iterable[Node] = (), head: int | None = None) -> None:
        """Raises SessionError if the nodes are no tree."""
        self._nodes: dict[int, Node] = {}
        for node in nodes:
            known = node.parent is None or (node.parent < node.id and node.parent in self._nodes)
            if node.id < 1 or node.id in self._nodes or not known:
                raise SessionError(f"message {node.id} stands twice, or before the one it answers")
            self._nodes[node.id] = node
        if head is not None and head not in self._nodes:
            raise SessionError(f"there is no message {head}, where the conversation should stand")
        self.head = head

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def copy(self) -> MessageTree:
        return MessageTree(self._nodes.values(), self.head)

    def path(self, end: int | None = None) -> list[Node]:
        """The messages up to ``end``, or to the head, the first one first."""
        found = []
        at = self.head if end is None else (end or None)
        while at is not None:
            found.append(self._nodes[at])
            at = self._nodes[at].parent
        return found[::-1]

    def add(self, parent: int | None, role: Role, content: str, *, partial: bool = False) -> Node:
        """A new message after ``parent``; the head moves there."""
        node = Node(max(self._nodes, default=0) + 1, parent, role, content, partial)
        self._nodes[node.id] = node
        self.head = node.id
        return node

    def branches(self) -> list[Branch]:
        """Every end of the tree, and where the conversation stands, the oldest first."""
        inner = {node.parent for node in self._nodes.values()}
        ends = {node for node in self._nodes if node not in inner} | {self.head or 0}
        found = []
        for end in sorted(ends):
            path = self.path(end)
            found.append(Branch(end, len(path), path[-1].content if path else "", end == (self.head or 0)))
        return found

    def move(self, end: int) -> None:
        """Stand at the message ``end``, 0 for before the first. Raises SessionError if there is none."""
        if end != 0 and end not in self._nodes:
            raise SessionError(f"there is no branch {end}")
        self.head = end or None
