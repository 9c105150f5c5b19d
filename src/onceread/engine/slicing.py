"""How a slice of prefill is divided between the prompts that are being read."""

from __future__ import annotations


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
