"""Splits what a model thinks, ``<think>…</think>``, from what it answers.

Only at the beginning of a reply: further down the tags can be what the answer is about. Some templates open the
tag in the prompt, so that the reply begins inside.
"""

from __future__ import annotations

from onceread.chat.toolcalls import Event, Reasoning, ReplyText, common_end

Tags = tuple[str, str]

TAGS: tuple[Tags, ...] = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def tags_of(template: str) -> Tags | None:
    """The tags that a template's model thinks between, as far as the template tells."""
    for tags in TAGS:
        if tags[1] in template:
            return tags
    return None


def left_open(text: str, tags: Tags) -> bool:
    """Does ``text``, a prompt's end or a message that is continued, stop inside of the tags?"""
    opened = text.rfind(tags[0])
    return opened >= 0 and text.find(tags[1], opened) < 0


class ReasoningText(ReplyText):
    """Takes the reasoning off, and hands on the rest."""

    def __init__(self, answer: ReplyText, tags: Tags, *, opened: bool) -> None:
        """``opened``: the reply begins inside of the tags."""
        self._answer = answer
        self._open, self._close = tags
        self._undecided = not opened  # the tag may still come
        self._thinks = opened
        self._text = ""  # not yet dealt with
        self._space = ""  # white space that is only shown if more reasoning follows
        self._began = False
        if opened:
            answer.trim_start()

    def trim_start(self) -> None:
        self._answer.trim_start()

    def feed(self, text: str) -> list[Event]:
        if self._undecided:
            text = self._decide(self._text + text)
        if self._thinks:
            return self._think(self._text + text)
        return [] if self._undecided else self._answer.feed(text)

    def finish(self, *, cut: bool) -> list[Event]:
        events: list[Event] = []
        if self._thinks:
            events = self._reason(self._text)
        elif self._undecided:
            events = self._answer.feed(self._text)
        return [*events, *self._answer.finish(cut=cut)]

    def _decide(self, text: str) -> str:
        begun = text.lstrip()
        if begun.startswith(self._open):
            self._undecided, self._thinks = False, True
            self._answer.trim_start()
            self._text = ""
            return begun[len(self._open) :]
        if self._open.startswith(begun):
            self._text = text
            return ""
        self._undecided = False
        self._text = ""
        return text

    def _think(self, text: str) -> list[Event]:
        at = text.find(self._close)
        if at < 0:
            held = common_end(text, self._close)
            self._text = text[len(text) - held :]
            return self._reason(text[: len(text) - held])
        self._thinks = False
        self._text = ""
        return [*self._reason(text[:at]), *self._answer.feed(text[at + len(self._close) :])]

    def _reason(self, text: str) -> list[Event]:
        if not self._began:
            text = text.lstrip()
        stripped = text.rstrip()
        if not stripped:
            self._space += text if self._began else ""
            return []
        self._began = True
        space, self._space = self._space, text[len(stripped) :]
        return [Reasoning(space + stripped)]
