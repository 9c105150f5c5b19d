"""Functions of the caller's that shape what is sampled, and lists of them, under the names that people know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onceread.engine.request import Logits, LogitsProcessor, StoppingCriterion, TokenArray

StoppingCriteria = StoppingCriterion


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors, each of which gets what the one before it made of the logits."""

    def __call__(self, input_ids: TokenArray, scores: Logits) -> Logits:
        """``input_ids``: the tokens evaluated so far, shape (n,); ``scores``: shape (vocabulary,)."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Criteria, one of which is enough to end a reply. All are asked each time."""

    def __call__(self, input_ids: TokenArray, logits: Logits) -> bool:
        """``input_ids``: the tokens evaluated so far, shape (n,); ``logits``: shape (vocabulary,)."""
        said = [bool(criterion(input_ids, logits)) for criterion in self]
        return any(said)


class MinTokensLogitsProcessor:
    """Forbids the end of a reply until it has ``min_tokens`` tokens. For one reply: it counts from its first call."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: TokenArray, scores: Logits) -> Logits:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def as_processor(given: LogitsProcessor | Sequence[LogitsProcessor] | None) -> LogitsProcessor | None:
    """One processor, or any sequence of them, as one. None where there is nothing to call."""
    if callable(given):
        return given
    return LogitsProcessorList(given) if given else None


def as_criterion(given: StoppingCriteria | Sequence[StoppingCriteria] | None) -> StoppingCriteria | None:
    """The same for what may end a reply."""
    if callable(given):
        return given
    return StoppingCriteriaList(given) if given else None


__all__ = [
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "as_criterion",
    "as_processor",
]
