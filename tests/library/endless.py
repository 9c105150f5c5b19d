"""A reply that does not end by itself while a test looks on: each token of it takes a while."""

from __future__ import annotations

import threading
from typing import Any

_never = threading.Event()


def slowly(ids: Any, scores: Any) -> Any:
    """A logits processor. A tiny model fills its whole context in the time in which a thread is not scheduled."""
    _never.wait(0.03)
    return scores


ENDLESS: dict[str, Any] = {"max_tokens": 100_000, "ignore_eos": True, "logits_processor": [slowly]}
