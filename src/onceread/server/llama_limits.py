"""Replies that end by indentation or by time, as code editors ask for: the engine knows neither."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from onceread.engine.errors import Cancelled
from onceread.engine.request import DoneEvent, Event, FinishEvent, LogitsEvent
from onceread.server.answering import Answering
from onceread.server.metrics import Metrics

if TYPE_CHECKING:
    from onceread.engine.engine import Engine


@dataclass(slots=True)
class Told:
    """What is known of one reply so far."""

    n_indent: int
    seconds: float | None
    began: float = field(default_factory=time.monotonic)
    tokens: int = 0
    stop_string: str | None = None
    has_new_line: bool = False
    ended: bool = False
    line: str | None = None  # what its last line begins with, while that may still be too little

    def within(self, text: str) -> tuple[str, bool]:
        """``text`` up to where the reply must end, and whether it must."""
        shown = self._indented(text) if self.n_indent else len(text)
        over = shown < len(text)
        text = text[:shown]
        if "\n" in text:
            self.has_new_line = True
            over = over or (self.seconds is not None and time.monotonic() - self.began > self.seconds)
        return text, over

    def _indented(self, text: str) -> int:
        """How many characters come before the first that stands behind too few blanks in its line."""
        for at, char in enumerate(text):
            if self.line is not None:
                if char in " \t":
                    self.line += char
                elif len(self.line) < self.n_indent:
                    return at
                else:
                    self.line = None
            if char == "\n":
                self.line = ""
        return len(text)


class LimitedAnswering(Answering):
    """Ends replies by what llama-server's requests say, and remembers what the engine says of each."""

    def __init__(
        self, engine: Engine, metrics: Metrics, prompt_param: str, *, n_indent: int, milliseconds: int
    ) -> None:
        super().__init__(engine, metrics, prompt_param)
        seconds = milliseconds / 1000 if milliseconds > 0 else None
        self.told: defaultdict[tuple[int, int], Told] = defaultdict(lambda: Told(n_indent, seconds))
        self._cut: set[int] = set()  # prompts of which a reply was ended here

    async def _drained(self, seconds: float | None = None) -> list[tuple[int, Event]]:
        while True:
            drained = await super()._drained(seconds)
            found = [(prompt, kept) for prompt, event in drained for kept in self._kept(prompt, event)]
            if found or seconds is not None or not self._running:
                return found

    def _kept(self, prompt: int, event: Event) -> list[Event]:
        if isinstance(event, DoneEvent):
            cancelled_here = prompt in self._cut and isinstance(event.error, Cancelled)
            return [replace(event, error=None) if cancelled_here else event]
        if isinstance(event, LogitsEvent):
            return [event]
        told = self.told[prompt, event.index]
        if told.ended:
            return []
        if isinstance(event, FinishEvent):
            told.stop_string = event.stop_string
            self._ended(prompt, told)
            return [event]
        text, over = told.within(event.text)
        told.tokens = event.tokens
        if not over:
            return [event]
        self._cut.add(prompt)
        self._ended(prompt, told)
        return [replace(event, text=text), FinishEvent(event.index, "length")]

    def _ended(self, prompt: int, told: Told) -> None:
        told.ended = True
        handle = self._handles[prompt]
        replies = [self.told.get((prompt, index)) for index in range(handle.request.n)]
        if prompt in self._cut and all(reply is not None and reply.ended for reply in replies):
            handle.cancel()
