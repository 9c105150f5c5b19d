"""The truth about a reply: a fresh context that reads everything, and how far its own answers scatter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onceread.engine.reply import Reply
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model

POSITIONS = 16  # of each reply are compared
Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class Trace:
    """What the engine saw and chose while it wrote one reply."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)


@contextmanager
def recording(positions: int = POSITIONS, *, logits: bool = True) -> Iterator[dict[tuple[int, int], Trace]]:
    """Traces of all replies written inside, by (id of the request's handle, reply index).

    ``tokens`` are those that were decoded: the last one that is sampled never is.
    """
    traces: dict[tuple[int, int], Trace] = {}
    plain = Reply.sample

    def sample(self: Reply, context: Context, index: int) -> bool:
        trace = traces.setdefault((id(self.job.handle), self.index), Trace())
        if not trace.prompt:
            trace.prompt = self.prompt.tolist()
        if logits and len(trace.logits) < positions:
            trace.logits.append(context.logits(index))
        before = self.sampled
        goes_on = plain(self, context, index)
        if self.sampled > before and len(trace.tokens) < positions and goes_on:
            trace.tokens.append(self.pending)
        return goes_on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reply, "sample", sample)
        yield traces


class Reference:
    """A context of its own, emptied before every question."""

    def __init__(self, model: Model, n_ctx: int = 2048) -> None:
        self.model = model
        self._context = Context(
            model, ContextParams(n_ctx=n_ctx, n_seq_max=4, n_threads=2, n_threads_batch=2)
        )
        self._batch = Batch(512)

    def logits(
        self, prompt: list[int], reply: list[int], *, slice_size: int = 512, one_by_one: bool = False
    ) -> Logits:
        """Shape (len(reply) + 1, n_vocab): after the prompt, and after each token of the reply, teacher-forced."""
        self._context.clear()
        rows = []
        tokens = prompt + ([] if one_by_one else reply)
        for start in range(0, len(tokens), slice_size):
            part = tokens[start : start + slice_size]
            self._batch.clear()
            for offset, token in enumerate(part):
                position = start + offset
                if position >= len(prompt) - 1:
                    self._batch.add_one(token, position, 0)
                else:
                    self._batch.add([token], position, 0, logits_last=False)
            self._context.decode(self._batch)
            rows += [self._context.logits(i) for i in range(len(part)) if start + i >= len(prompt) - 1]
        if one_by_one:
            for offset, token in enumerate(reply):
                self._batch.clear()
                index = self._batch.add_one(token, len(prompt) + offset, 0)
                self._context.decode(self._batch)
                rows.append(self._context.logits(index))
        return np.stack(rows)

    def noise(self, prompt: list[int], reply: list[int]) -> float:
        """Largest difference between 20 cold readings in other batch shapes and the plainest one."""
        plain = self.logits(prompt, reply)
        shapes = [(size, one) for size in (512, 200, 128, 97, 64, 48, 33, 16, 7, 3) for one in (False, True)]
        return max(
            float(np.abs(self.logits(prompt, reply, slice_size=s, one_by_one=o) - plain).max())
            for s, o in shapes
        )

    def close(self) -> None:
        self._batch.close()
        self._context.close()


def distance(trace: Trace, reference: Reference) -> float:
    """How far the engine's logits of a reply are from a fresh context's, at worst."""
    n = len(trace.logits)
    cold = reference.logits(trace.prompt, trace.tokens[: n - 1])
    return float(np.abs(cold - np.stack(trace.logits)).max())


def greedy_agrees(trace: Trace, reference: Reference, noise: float) -> bool:
    """Did each greedy step choose what the fresh context would, up to where two tokens are too close to call?"""
    cold = reference.logits(trace.prompt, trace.tokens[: len(trace.logits) - 1])
    for row, token in zip(cold, trace.tokens, strict=False):
        second, first = np.sort(row)[-2:]
        if first - second < noise:
            return True
        if int(row.argmax()) != token:
            return False
    return True
