"""A cache directory, seen and changed without a server. One may be using it meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from onceread.cache.checking import Finding
from onceread.cache.contract import Pin
from onceread.cache.cuts import Tokens
from onceread.cache.disk import DiskTier
from onceread.cache.errors import CacheError
from onceread.cache.listing import Node, page, path_named
from onceread.cli.errors import CommandError, one_line
from onceread.models.home import expanded
from onceread.server.cache_schemas import PathList, PinBody, PinList, path_list, pin_body, when
from onceread.server.responses_store import ResponseStore


class ModelUse(BaseModel):
    """What one model has in the directory."""

    model: str
    fingerprint: str
    bytes: int
    pinned_bytes: int
    chunks: int
    tokens: int
    last_used: str


class DirectoryUse(BaseModel):
    """A cache directory in numbers."""

    directory: str
    budget_bytes: int  # 0: no server has said it yet
    bytes: int
    pinned_bytes: int
    chunks: int
    tokens: int
    checkpoints: int = 0
    checkpoint_bytes: int = 0  # of ``bytes``
    models: list[ModelUse]


class DirectoryCache:
    """What `onceread cache` does, on a directory. Every method raises CommandError."""

    def __init__(self, directory: Path) -> None:
        self.directory = expanded(directory)
        if not self.directory.exists():
            raise CommandError(
                f"there is no cache in {self.directory} yet; --cache-dir names another directory"
            )
        with _plainly():
            self._tier = DiskTier.admin(self.directory)

    def __enter__(self) -> DirectoryCache:
        return self

    def __exit__(self, *_: object) -> None:
        self._tier.close()

    def paths(self, limit: int, after: str | None) -> PathList:
        with _plainly():
            nodes, _ = self._nodes()
            return path_list(page(nodes, self._tier.pins(), limit, after))

    def pins(self) -> PinList:
        with _plainly():
            return PinList(pins=[pin_body(pin) for pin in self._tier.pins()])

    def pin(self, id: str, name: str) -> PinBody:  # noqa: A002
        with _plainly():
            nodes, fingerprints = self._nodes()
            node, tokens = path_named(nodes, id)
            pin = Pin(
                id=uuid.uuid4().hex[:12],
                name=name,
                fingerprint=fingerprints[node.root],
                namespace=node.namespace,
                root=node.root,
                tokens=tokens.astype("<i4").tobytes(),
                created=time.time(),
            )
            self._tier.pin(pin)
            sizes = [listed.bytes for listed in self._tier.pins() if listed.id == pin.id]
            return pin_body(replace(pin, bytes=sum(sizes)))

    def unpin(self, id: str) -> None:  # noqa: A002
        with _plainly():
            found = [pin for pin in self._tier.pins() if pin.id.startswith(id.lower())] if id else []
            if len(found) > 1:
                raise CommandError(f"{len(found)} pins begin with {id!r}: give more digits")
            if not found or not self._tier.unpin(found[0].id):
                raise CommandError(f"there is no pin {id!r}; onceread cache pins lists them")

    def clear(self, *, everyone: bool) -> int:
        """All of it, and the stored responses: namespaces are a server's business, and so is ``everyone``."""
        with _plainly():
            responses = ResponseStore(self.directory, keep_days=1, max_bytes=0)  # limits are for storing
            try:
                return self._tier.clear() + responses.clear(None)
            finally:
                responses.close()

    def verify(self) -> Iterator[Finding]:
        """Reads every file; what is bad is dropped, and told."""
        with _plainly():
            yield from self._tier.verify()

    def use(self) -> DirectoryUse:
        with _plainly():
            totals = self._tier.totals()
            models = []
            for known in self._tier.models():
                of = self._tier.totals(known.fingerprint)
                models.append(
                    ModelUse(
                        model=known.label,
                        fingerprint=known.fingerprint.hex()[:12],
                        bytes=of.bytes,
                        pinned_bytes=of.pinned_bytes,
                        chunks=of.chunks,
                        tokens=of.tokens,
                        last_used=when(known.last_used),
                    )
                )
        return DirectoryUse(
            directory=str(self.directory),
            budget_bytes=totals.budget,
            bytes=totals.bytes,
            pinned_bytes=totals.pinned_bytes,
            chunks=totals.chunks,
            tokens=totals.tokens,
            checkpoints=totals.checkpoints,
            checkpoint_bytes=totals.checkpoint_bytes,
            models=models,
        )

    def _nodes(self) -> tuple[list[Node], dict[bytes, bytes]]:
        """What a listing is made of, and each root's fingerprint."""
        labels = {known.fingerprint: known.label for known in self._tier.models()}
        nodes = []
        fingerprints = {}
        for row in self._tier.all_rows():
            record = row.record
            fingerprints[record.root] = row.fingerprint
            nodes.append(
                Node(
                    key=record.key,
                    parent=record.parent,
                    root=record.root,
                    namespace=record.namespace,
                    model=labels.get(row.fingerprint, row.fingerprint.hex()[:12]),
                    tokens=record.tokens,
                    bytes_memory=0,
                    bytes_disk=row.file_bytes,
                    hits=row.use.hits,
                    last_used=row.use.last_used,
                    spell=partial(_all_of, record.spelled),
                )
            )
        return nodes, fingerprints


def _all_of(spelled: bytes, _tokens: Tokens) -> bytes:
    return spelled  # more than was asked for; a listing cuts what it shows


@contextmanager
def _plainly() -> Iterator[None]:
    try:
        yield
    except CacheError as error:
        raise CommandError(one_line(error)) from error
