"""Pins: prefixes that are kept whatever happens."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from onceread.cache.chunk import Chunk
from onceread.cache.contract import PINNABLE, Pin
from onceread.cache.cuts import Tokens
from onceread.cache.disk_side import DiskSide
from onceread.cache.errors import PathUnknown, PinRefused
from onceread.cache.holdings import Holdings
from onceread.cache.sizes import binary


class Pinning:
    """The pins of one store. With a disk they live there; without, here."""

    def __init__(self, fingerprint: bytes, holdings: Holdings, disk: DiskSide | None) -> None:
        self._fingerprint = fingerprint
        self._holdings = holdings
        self._lock = holdings.lock
        self._disk = disk
        self._pins: list[Pin] = []

    def add(self, root: bytes, tokens: Tokens, name: str) -> Pin:
        """Never evict the state of ``tokens``. Raises PathUnknown if not all is stored, PinRefused for lack of room."""
        with self._lock:
            self._take_in()
            match = self._holdings.tree.match(root, tokens)
            if match.length < len(tokens) or not len(tokens):
                raise PathUnknown(f"{match.length} of {len(tokens)} tokens are stored: read it first")
            chunks = self._kept(root, tokens)
            pin = Pin(
                id=uuid.uuid4().hex[:12],
                name=name,
                fingerprint=self._fingerprint,
                namespace=self._holdings.namespaces[root],
                root=root,
                tokens=tokens.astype("<i4").tobytes(),
                created=time.time(),
                bytes=sum(chunk.size for chunk in chunks),
            )
            if self._disk is None:
                self._refuse_unless_it_fits(sum(chunk.size for chunk in chunks if not chunk.pinned))
            for chunk in chunks:
                chunk.pinned = True
            self._pins.append(pin)
        if self._disk is not None:
            try:
                self._disk.pin(pin, chunks)
            except BaseException:
                self._drop(pin.id)
                raise
        return pin

    def remove(self, pin_id: str, namespaces: Collection[bytes] | None) -> bool:
        """Let a pin go, by its id or the beginning of one. False if there is none, or more than one."""
        found = [pin for pin in self.listed(namespaces) if pin.id.startswith(pin_id)] if pin_id else []
        if len(found) != 1:
            return False
        if self._disk is not None:
            self._disk.unpin(found[0].id)
        self._drop(found[0].id)
        return True

    def listed(self, namespaces: Collection[bytes] | None) -> list[Pin]:
        """The pins of these namespaces, or all, with the bytes they take."""
        with self._lock:
            self._take_in()
            return [
                replace(pin, bytes=sum(chunk.size for chunk in self._kept(pin.root, _tokens(pin))))
                for pin in self._pins
                if namespaces is None or pin.namespace in namespaces
            ]

    def cleared(self, namespaces: Collection[bytes] | None) -> None:
        """These namespaces, or all, were cleared: their pins are gone, on disk too."""
        with self._lock:
            self._take_in()
            self._pins = [p for p in self._pins if namespaces is not None and p.namespace not in namespaces]

    def _drop(self, pin_id: str) -> None:
        with self._lock:
            self._pins = [pin for pin in self._pins if pin.id != pin_id]
            self._mark()

    def _take_in(self) -> None:
        if self._disk is not None and self._disk.pins is not None:
            self._pins = [pin for pin in self._disk.pins if pin.fingerprint == self._fingerprint]
            self._disk.pins = None
            self._mark()

    def checkpoint_came(self, root: bytes) -> None:
        """There is a checkpoint that was not there: a pin may keep it now, and no longer the one below it."""
        if any(pin.root == root for pin in self._pins):
            self._mark()

    def _mark(self) -> None:
        for chunk in self._holdings.tree:
            chunk.pinned = False
        for pin in self._pins:
            for chunk in self._kept(pin.root, _tokens(pin)):
                chunk.pinned = True

    def _kept(self, root: bytes, tokens: Tokens) -> list[Chunk]:
        """What a pin of ``tokens`` keeps: their chunks, the deepest checkpoint and what it continues."""
        tree = self._holdings.tree
        parts = tree.match(root, tokens).parts
        deepest = tree.checkpoint(root, tokens)
        if deepest is not None:
            parts = (*parts, *deepest.parts, deepest.state)
        return list(dict.fromkeys(part.chunk for part in parts))

    def _refuse_unless_it_fits(self, added: int) -> None:
        budget = self._holdings.memory.budget
        held = sum(chunk.size for chunk in self._holdings.tree if chunk.pinned)
        if held + added > PINNABLE * budget:
            raise PinRefused(
                f"the prefix takes {binary(added)} of RAM, {binary(held)} are pinned already, "
                f"and of the budget of {binary(budget)} at most {binary(int(PINNABLE * budget))} can be"
            )


def _tokens(pin: Pin) -> Tokens:
    return np.frombuffer(pin.tokens, dtype="<i4").astype(np.int32)
