"""A client's own functions around the sampler: what they are given, and what is taken from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onceread.engine.errors import EngineFailed
from onceread.engine.request import Logits, LogitsProcessor, Request, StoppingCriterion, TokenArray
from onceread.native.context import Context
from onceread.native.samplers import Sampler

_HIGHEST = 1e30  # a logit of plus infinity has no probability that could be computed


class HookRaised(Exception):
    """A client's function raised ``error``, or returned what can't be sampled from."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        # What is not an Exception means to end a thread: of those the client has none here.
        self.error = error if isinstance(error, Exception) else EngineFailed(f"a hook raised {error!r}")


class Hooks:
    """The functions of one reply."""

    def __init__(self, processor: LogitsProcessor | None, criterion: StoppingCriterion | None) -> None:
        self._processor = processor
        self._criterion = criterion

    @classmethod
    def of(cls, request: Request) -> Hooks | None:
        """None for a request that has none."""
        if request.logits_processor is None and request.stopping_criteria is None:
            return None
        return cls(request.logits_processor, request.stopping_criteria)

    def sample(self, sampler: Sampler, context: Context, index: int, tokens: TokenArray) -> tuple[int, bool]:
        """A token by the logits at a batch index, and whether the reply is over before it.

        ``tokens``: all that were evaluated. Raises HookRaised, and what `Sampler.sample` does.
        """
        raw = context.logits(index)
        if self._processor is None:
            token = sampler.sample(context, index)
        else:
            token = sampler.sample_from(processed(self._processor, tokens, raw))
        if self._criterion is None:
            return token, False
        try:
            return token, bool(self._criterion(tokens.copy(), raw))
        except BaseException as error:
            raise HookRaised(error) from error


def processed(processor: LogitsProcessor, tokens: TokenArray, raw: Logits) -> Logits:
    """The logits that a processor makes of these, fit to be sampled from. Raises HookRaised."""
    try:
        return _checked(processor(tokens.copy(), raw.copy()), len(raw))
    except BaseException as error:
        raise HookRaised(error) from error


def _checked(returned: Any, size: int) -> Logits:
    logits = np.ascontiguousarray(returned, dtype=np.float32)
    if logits.shape != (size,):
        raise ValueError(f"a logits processor returned the shape {logits.shape}, not ({size},)")
    highest = float(logits.max())  # NaN, if one of them is
    if np.isnan(highest):
        raise ValueError("a logits processor returned NaN")
    if highest == -np.inf:
        raise ValueError("a logits processor left no token: all its logits are minus infinity")
    return np.minimum(logits, np.float32(_HIGHEST)) if highest > _HIGHEST else logits
