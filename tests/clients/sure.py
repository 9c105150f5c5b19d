"""Prompts whose greedy replies rounding does not change, for tests that compare two replies.

llama.cpp rounds differently in other batches and at other places of the KV cache, and some of
the demo model's near ties then swap places (docs/soak.md has the size of that). Here each token of the
reply leads by 2.5 nats and more, several times what any rounding was seen to move.
"""

from __future__ import annotations

from typing import Any

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10,"
_TEN = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
COUNTS: list[Any] = [
    *[{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": _TEN}] * 3,
    {"role": "user", "content": "Count to ten."},
]
