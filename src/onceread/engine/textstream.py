"""Bytes of tokens into text that may be shown: whole characters, and never a part of a stop string."""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """What a push released. ``stop`` is the stop string that ended the text, if one did."""

    text: str
    stop: str | None = None


class TextStream:
    """Holds back incomplete UTF-8 and whatever could be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = tuple(s for s in stops if s)
        self._longest = max((len(s) for s in self._stops), default=0)
        self._held = ""
        self.decoded = 0  # characters decoded so far, held ones included
        self.shown = 0  # characters released so far

    def push(self, piece: bytes) -> Shown:
        """Add a token's bytes."""
        new = self._decoder.decode(piece)
        self.decoded += len(new)
        if not self._stops:
            self.shown += len(new)
            return Shown(new)
        text = self._held + new
        found = [(at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            at, stop = min(found, key=lambda f: (f[0], -len(f[1])))
            self._held = ""
            self.shown += at
            return Shown(text[:at], stop)
        keep = self._possible_stop(text)
        self._held = text[len(text) - keep :]
        self.shown += len(text) - keep
        return Shown(text[: len(text) - keep])

    def finish(self) -> str:
        """The reply ended otherwise: what was held as a possible stop string is text after all.

        Bytes of an incomplete character are dropped.
        """
        text, self._held = self._held, ""
        self.shown += len(text)
        return text

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-n:]
            if any(s.startswith(end) for s in self._stops):
                return n
        return 0
