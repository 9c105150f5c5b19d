"""One reply of a session and what it cost, gathered from a stream's chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onceread.library.session_tree import SessionError

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Reply:
    """Numbers are None where whoever wrote the reply does not tell them, or was stopped before."""

    text: str
    reasoning: str
    finish_reason: str
    """``stop``, ``length`` or another of the API's; ``interrupted`` if the reply was stopped."""
    prompt_tokens: int | None
    evaluated: int | None
    """Prompt tokens that had to be computed."""
    cached_tokens: int | None
    """Prompt tokens that were known; with ``evaluated`` they add up to ``prompt_tokens``."""
    cached_by_source: dict[str, int] | None
    """Where those came from: context, memory, disk, shared, moved."""
    completion_tokens: int | None
    first_token_seconds: float | None
    """From the call to the first text."""
    seconds: float
    """From the call to the end."""
    tokens_per_second: float | None
    """Of the reply, while it was written."""


@dataclass
class ReplyGatherer:
    """Takes chunks, gives what is new in them, and in the end the `Reply`."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    _usage: Mapping[str, Any] = field(default_factory=dict)
    _timings: Mapping[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _first: float | None = None

    def take(self, chunk: Mapping[str, Any]) -> tuple[str, str]:
        """New text, and new reasoning. Raises SessionError for a call of a tool."""
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        text = reasoning = ""
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            if delta.get("tool_calls") or delta.get("function_call"):
                raise SessionError(
                    "the reply calls a tool, which a Session can't go on from: use create_chat_completion"
                )
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if (text or reasoning) and self._first is None:
            self._first = time.monotonic()
        self.text += text
        self.reasoning += reasoning
        return text, reasoning

    def take_prompt_usage(self, usage: Mapping[str, Any] | None) -> None:
        """What the prompt cost, from who knows it of a stream that was stopped before its end."""
        self._usage = self._usage or usage or {}

    def reply(self, *, interrupted: bool = False) -> Reply:
        now = time.monotonic()
        details = self._usage.get("prompt_tokens_details")
        details = details if isinstance(details, Mapping) else {}
        prompt, written = _count(self._usage, "prompt_tokens"), _count(self._usage, "completion_tokens")
        cached = _count(details, "cached_tokens")
        cached = _count(self._timings, "cache_n") if cached is None else cached
        evaluated = _count(self._timings, "prompt_n")
        if evaluated is None and prompt is not None and cached is not None:
            evaluated = prompt - cached
        sources = details.get("cached_tokens_by_source")
        return Reply(
            text=self.text,
            reasoning=self.reasoning,
            finish_reason=INTERRUPTED if interrupted else self.finish_reason or "stop",
            prompt_tokens=prompt,
            evaluated=evaluated,
            cached_tokens=cached,
            cached_by_source=dict(sources) if isinstance(sources, Mapping) and sources else None,
            completion_tokens=written,
            first_token_seconds=None if self._first is None else self._first - self._began,
            seconds=now - self._began,
            tokens_per_second=self._speed(written, now),
        )

    def _speed(self, written: int | None, now: float) -> float | None:
        speed = self._timings.get("predicted_per_second")
        if isinstance(speed, int | float) and speed:
            return float(speed)
        if written is None or written < 2 or self._first is None or now <= self._first:
            return None
        return (written - 1) / (now - self._first)


def _count(numbers: Mapping[str, Any], name: str) -> int | None:
    """A number as a server tells it, which may be any server."""
    value = numbers.get(name)
    return value if isinstance(value, int) else None
