"""What a chunk is worth: the cost of reading it again, times the occasions it was used on, for each byte it takes.

Requests that follow close upon each other are one occasion: five steps of an agent that then is done with it say
less about tomorrow than two questions an hour apart. "Close" is measured in what the store takes in meanwhile, for
that is what pushes things out.

Each tier adds its own age. In RAM that is a clock which rises with all that is put there, so that a chunk which was
used on three occasions outlives two turnovers of the tier, and one that was used on thirty outlives twenty. The
index on disk has the clock of the method that this comes from, GreedyDual-Size-Frequency (L. Cherkasova, "Improving
WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories 1998): it rises to the worth
of whatever is evicted.

Where a model can go on at checkpoints only, a checkpoint is worth the tokens back to the next lower one, and a chunk
nothing by itself: chunks stay as long as a checkpoint hangs on them, and go before everything else once none does.
"""

from __future__ import annotations

_MOST = 32  # occasions, so that what was popular once can be forgotten
_DEPTH = 16_384  # tokens before a token at which attention costs as much as everything else
_MIB = 1024 * 1024
_TURNOVER = 1.5  # occasions that one turnover of a tier outweighs
APART = 0.2  # of the larger tier is taken in between two uses that count as two occasions


def value(occasions: int, start: int, n: int, size: int) -> float:
    """Of a chunk of ``n`` tokens from position ``start`` on that takes ``size`` bytes. Tokens per MiB, weighted."""
    cost = n * (1 + (start + n / 2) / _DEPTH)
    return min(occasions, _MOST) * cost * _MIB / max(size, 1)


def occasions(worth: float, start: int, n: int, size: int) -> int:
    """The other way round: how many occasions a chunk of this value was used on, as far as can be told."""
    return min(_MOST, max(1, round(worth / value(1, start, n, size))))


def age(n: int, budget: int) -> float:
    """By how much the clock of a tier of ``budget`` bytes rises when it takes in ``n`` tokens."""
    return _TURNOVER * n * _MIB / max(budget, 1)
