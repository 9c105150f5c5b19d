"""Where checkpoints are taken while a prompt is read, for memories that can be gone on from nowhere else.

They are few, for each may take hundreds of megabytes: after the system prompt, where the prompt leaves what is
known, where the client asked for it, at the last message boundaries, right before the reply, and, where much is
read at once, at distances from its end that double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onceread.engine.sequence import Tokens

MOST = 8  # checkpoints of one reading
NEAR = 8  # tokens: what lies so close behind a checkpoint needs none of its own
_BOUNDARIES = 3  # message boundaries, the last ones
_ASKED = 4  # that the client may ask for
_DOUBLING = 256  # tokens before the prompt's end, the first of the distances that double


class Marker:
    """Finds the positions for one vocabulary."""

    def __init__(self, message_ends: frozenset[int]) -> None:
        """``message_ends``: tokens after which a message is over (end of turn, end of text)."""
        self._ends = np.fromiter(sorted(message_ends), dtype=np.int32)

    def marks(self, prompt: Tokens, start: int, known: int = 0, keep_at: Sequence[int] = ()) -> list[int]:
        """Positions in (``start``, length of ``prompt``), ascending: a decode is to end at each.

        ``start``: where reading begins. ``known``: up to where others have read the same tokens; if that is
        behind ``start`` there was no checkpoint where one was wanted, and the next of these prompts will want it.
        ``keep_at``: where the client asked for one; of more than a few the last.
        """
        before_reply = len(prompt) - 1  # the last token has to be decoded, for its logits
        boundaries = [b for b in self._boundaries(prompt) if start < b < before_reply]
        wanted = [before_reply, known, *keep_at[: -_ASKED - 1 : -1]]  # the most wanted first
        wanted += boundaries[: 1 if start == 0 else 0]
        wanted += boundaries[: -_BOUNDARIES - 1 : -1]
        distance = _DOUBLING
        while distance < before_reply - start:
            wanted.append(self._boundary_near(boundaries, before_reply - distance, distance // 2))
            distance *= 2
        chosen: list[int] = []
        for mark in wanted:
            if len(chosen) < MOST and self._is_apart(mark, start, before_reply, chosen):
                chosen.append(mark)
        return sorted(chosen)

    def _boundaries(self, prompt: Tokens) -> list[int]:
        return [int(i) + 1 for i in np.flatnonzero(np.isin(prompt, self._ends))]

    @staticmethod
    def _boundary_near(boundaries: list[int], position: int, within: int) -> int:
        """Where a message ends, if one does up to ``within`` tokens before the position; else the position."""
        before = [b for b in boundaries if position - within < b <= position]
        return before[-1] if before else position

    @staticmethod
    def _is_apart(mark: int, start: int, end: int, chosen: list[int]) -> bool:
        return start + NEAR < mark <= end and all(abs(mark - other) > NEAR for other in chosen)
