"""Whether replies are right: each chosen token against the logits of a fresh context that read everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onceread.bench.twin import Prompter, Tokens
from onceread.engine.config import default_threads
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams

if TYPE_CHECKING:
    from onceread.native.model import Model

COMPARED = 12  # tokens of a reply
_LONGEST = 24  # bytes of a token that is looked for
_SLICES = (512, 64, 16, 5)
_SLACK = 2.0  # times the noise is still a right state


class ColdReference:
    """A context that is emptied before every question. Nothing else may run on the machine meanwhile."""

    def __init__(self, model: Model, prompter: Prompter, n_ctx: int = 4096) -> None:
        threads = default_threads()
        self._context = Context(model, ContextParams(n_ctx, 2, n_threads=threads, n_threads_batch=threads))
        self._batch = Batch(512)
        self._prompter = prompter
        self._limit = n_ctx
        self._eog = sorted(model.vocab.eog_tokens)
        self._by_piece: dict[bytes, list[int]] = {}
        for token, piece in enumerate(model.vocab.pieces):
            if piece and not model.vocab.is_control(token):
                self._by_piece.setdefault(piece, []).append(token)

    def gap(self, prompt: Tokens, text: str) -> tuple[float, int]:
        """How far below the best logit the reply's tokens were at worst, and how many were compared.

        Which tokens were sampled is not known, for servers send text: where several could have been the next, the
        likeliest one counts.
        """
        rest = text.encode()
        if not rest or len(prompt) + COMPARED > self._limit:
            return 0.0, 0
        logits = self._read(prompt, 512)
        worst = 0.0
        for step in range(COMPARED):
            able = [
                t for n in range(1, min(len(rest), _LONGEST) + 1) for t in self._by_piece.get(rest[:n], ())
            ]
            if not able:  # half a character, which was sent as a replacement
                return worst, step
            chosen = max(able, key=lambda token: float(logits[token]))
            worst = max(worst, float(logits.max() - logits[chosen]))
            rest = rest[len(self._prompter.vocab.piece(chosen)) :]
            if not rest:
                return worst, step + 1
            logits = self._go_on(chosen, len(prompt) + step)
        return worst, COMPARED

    def noise(self, prompt: Tokens) -> float:
        """The largest difference of logits after ``prompt`` between readings in other slices."""
        rows = [self._read(prompt, size) for size in _SLICES]
        able = np.isfinite(rows[0])
        return max(float(np.abs(row[able] - rows[0][able]).max()) for row in rows[1:])

    def close(self) -> None:
        self._batch.close()
        self._context.close()

    def _read(self, prompt: Tokens, size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        self._context.clear()
        index = 0
        for start in range(0, len(prompt), size):
            part = list(prompt[start : start + size])
            self._batch.clear()
            self._batch.add(part, start, 0, logits_last=True)
            self._context.decode(self._batch)
            index = len(part) - 1
        return self._possible(index)

    def _go_on(self, token: int, position: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        self._batch.clear()
        index = self._batch.add_one(token, position, 0)
        self._context.decode(self._batch)
        return self._possible(index)

    def _possible(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        logits = np.array(self._context.logits(index))
        logits[self._eog] = -np.inf  # no reply may end before its length
        return logits


def is_right(gap: float, noise: float) -> bool:
    """A wrong state is off by several times the noise."""
    return gap <= _SLACK * noise
