"""What a chunk is worth: the cost of reading it again, times how often it is used, for each byte it takes.

Each tier adds its own age, a clock that rises to the worth of whatever it evicts: a chunk that is not used
any more is overtaken by newer ones after as many turnovers of the tier as it once was used. The method is
GreedyDual-Size-Frequency (L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
Caching Policy", HP Laboratories 1998).
"""

from __future__ import annotations

_MAX_HITS = 32  # so that what was popular once can be forgotten
_DEPTH = 16_384  # tokens before a token at which attention costs as much as everything else
_MIB = 1024 * 1024


def value(hits: int, start: int, n: int, size: int) -> float:
    """Of a chunk of ``n`` tokens from position ``start`` on that takes ``size`` bytes. Tokens per MiB, weighted."""
    cost = n * (1 + (start + n / 2) / _DEPTH)
    return min(hits, _MAX_HITS) * cost * _MIB / max(size, 1)
