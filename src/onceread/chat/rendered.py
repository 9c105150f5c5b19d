"""A rendered conversation: stretches of text with control tokens between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text. Whatever it holds, it is tokenized as text, never as control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Control:
    """A control token that the template wrote."""

    token: int
    text: str


Segment = Text | Control


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a chat template made of a conversation, in order. No two Texts stand side by side."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The rendering as one string, for people to look at: it no longer tells text from control tokens."""
        return "".join([segment.text for segment in self.segments])
