"""Tiny models for the tests that load them: written once, loaded, and held against a fresh context."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from onceread.native import checkpoints
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model
from tests.tiny.writer import WRITERS

NAMES = tuple(WRITERS)
# Noise of these F32 models is under 0.1; a wrong state was seen to be off by 1 and more, up to 50.
BOUND = 0.3
BATCH = 64
Logits = np.ndarray[tuple[int], np.dtype[np.float32]]


Segments = list[tuple[int, int, bytes]]  # start, end, attention
_random = random.Random(20240229)


def words(n: int) -> list[int]:
    """Random tokens."""
    return [_random.randrange(100, 40_000) for _ in range(n)]


def taken(context: Context, length: int, *cuts: int, seq: int = 0) -> tuple[Segments, bytes]:
    """Segments of a sequence up to ``length``, cut at ``cuts``, and its checkpoint there."""
    edges = pairwise((0, *cuts, length))
    segments = [(a, b, checkpoints.segment(context, seq, a, b)) for a, b in edges]
    return segments, checkpoints.checkpoint(context, seq, length)


@contextmanager
def loaded(name: str, folder: Path, tokenizer: Path) -> Iterator[Model]:
    """A tiny model by its name, with another model's tokenizer."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        WRITERS[name](path, _reader(tokenizer))
    with Model.load(path) as model:
        yield model


@cache
def _reader(path: Path) -> GGUFReader:
    return GGUFReader(str(path))


class Bench:
    """A context, and beside it a fresh one to hold its logits against. The window's cells are few."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 1024,
        n_seq_max: int = 6,
        swa_full: bool = False,
        flash_attn: str = "auto",
    ) -> None:
        self.model = model
        self.params = ContextParams(
            n_ctx=n_ctx,
            n_seq_max=n_seq_max,
            n_batch=BATCH,
            n_threads=2,
            n_threads_batch=2,
            swa_full=swa_full,
            flash_attn=flash_attn,
        )
        self.batch = Batch(BATCH)
        self._made: list[Context] = []
        self.context = self.another()
        self._fresh = self.another()

    def another(self) -> Context:
        self._made.append(Context(self.model, self.params))
        return self._made[-1]

    def read(self, tokens: list[int], pos: int = 0, seq: int = 0, context: Context | None = None) -> Logits:
        """Decode the tokens in slices; the logits of the last one."""
        context = context or self.context
        index = -1
        for i in range(0, len(tokens), BATCH):
            self.batch.clear()
            index = self.batch.add(tokens[i : i + BATCH], pos + i, seq, logits_last=True)
            context.decode(self.batch)
        return context.logits(index)

    def cold(self, tokens: list[int]) -> Logits:
        """The logits of the last token in a fresh context."""
        self._fresh.clear()
        return self.read(tokens, context=self._fresh)

    def off(self, past: list[int], more: list[int], seq: int = 0, context: Context | None = None) -> float:
        """Go on with ``more`` in a sequence that should hold ``past``: how far its logits are from cold ones."""
        warm = self.read(more, len(past), seq, context)
        return float(np.abs(warm - self.cold(past + more)).max())

    def close(self) -> None:
        self.batch.close()
        for context in self._made:
            context.close()
