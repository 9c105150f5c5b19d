"""How large a slice of prefill is, and how it is divided between the prompts that are being read."""

from __future__ import annotations


class Pace:
    """Slices that take about ``seconds`` by the rate measured so far, so that running streams stall no longer."""

    def __init__(self, seconds: float, least: int) -> None:
        """``least``: tokens that a slice has at any rate."""
        self._seconds = seconds
        self._least = least
        self._rate = 0.0  # tokens a second, smoothed

    def beside(self, streams: int) -> int:
        """Tokens for a slice in one batch with a token each of ``streams`` replies."""
        return max(self._least, int(self._rate * self._seconds) - streams)

    def observe(self, tokens: int, seconds: float) -> None:
        """A slice of ``tokens`` took so long. Short ones say little."""
        if tokens >= self._least and seconds > 0:
            rate = tokens / seconds
            self._rate = 0.7 * self._rate + 0.3 * rate if self._rate else rate


def divide(unread: list[int], room: int) -> list[int]:
    """Tokens for each prompt, given what each has still unread (at least 1, oldest first). Sums to ``room`` at most.

    The oldest gets at least half, as far as it can use it, so that nothing starves it. In what is left those
    that would be done with it go first, so that a short message does not wait behind a long document; then
    the oldest takes what it can, and the others share the rest by age.
    """
    if not unread:
        return []
    reserved = min(unread[0], room - room // 2)
    left = room - reserved
    shares = [reserved] + [0] * (len(unread) - 1)
    for i, wanted in enumerate(unread[1:], start=1):
        if wanted <= left:
            shares[i] = wanted
            left -= wanted
    for i, wanted in enumerate(unread):
        more = min(wanted - shares[i], left)
        shares[i] += more
        left -= more
    return shares
