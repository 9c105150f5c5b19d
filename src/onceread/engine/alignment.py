"""Text that comes back: keep the tokens that were sampled where the tokenizer would now split differently.

A client sends a reply back as text. Tokenized anew it often splits otherwise than it was sampled, and by
tokens alone the match would end there. Two token runs that spell the same bytes meet again at every place
where both have a boundary; up to the last such place the known path's tokens are kept, and from there on
the prompt's own. The prompt's text is never changed, and where it parts from the path inside a token
("wor|ld" sampled, "work" sent), the join falls back to the last boundary that both share, so that no split
is used that neither the model nor the tokenizer made.

        path    Hel lo| wor ld| again
        prompt  Hello | wor   k
                      ^ both have a boundary: join here
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onceread.engine.sequence import Tokens, common_prefix


class Join(NamedTuple):
    """``path[:kept] + prompt[covered:]`` spells the prompt. Both are 0 where nothing agrees."""

    kept: int  # tokens of the path
    covered: int  # tokens of the prompt that they stand for


class Aligner:
    """Joins paths and prompts of one vocabulary."""

    def __init__(self, pieces: list[bytes], control: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """``pieces``: each token's bytes. ``control``: True for tokens that are not text and match only themselves."""
        self._pieces = pieces
        # A token without bytes can't be told from nothing, so it too matches only itself.
        self._opaque = control | np.fromiter((not p for p in pieces), dtype=np.bool_, count=len(pieces))

    def join(self, path: Tokens, prompt: Tokens) -> Join:
        """The longest agreement of ``path`` with the beginning of ``prompt``."""
        i = j = common_prefix(path, prompt)
        while True:
            met = self._next_meeting(path, i, prompt, j)
            if met is None:
                return Join(i, j)
            i, j = met
            run = common_prefix(path[i:], prompt[j:])
            i += run
            j += run

    def _next_meeting(self, path: Tokens, i: int, prompt: Tokens, j: int) -> tuple[int, int] | None:
        """The next common boundary after the common one at ``i`` and ``j``, or None if the bytes part before."""
        ahead = b""  # bytes that one side has spelled and the other not yet
        path_leads = True
        while True:
            # Take a token on the side that is behind.
            if ahead and path_leads:
                if j >= len(prompt) or self._opaque[prompt[j]]:
                    return None
                piece = self._pieces[prompt[j]]
                j += 1
            else:
                if i >= len(path) or self._opaque[path[i]]:
                    return None
                piece = self._pieces[path[i]]
                i += 1
                if not ahead:
                    ahead = piece
                    path_leads = True
                    continue
            n = min(len(ahead), len(piece))
            if ahead[:n] != piece[:n]:
                return None
            if len(ahead) == len(piece):
                return i, j
            if len(piece) > n:
                ahead = piece[n:]
                path_leads = not path_leads
            else:
                ahead = ahead[n:]
