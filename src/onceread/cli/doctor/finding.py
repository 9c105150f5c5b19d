"""What was found of one thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``bad`` is broken, ``warn`` works and could do better. Both have an ``advice``."""

    name: str
    state: State
    text: str  # one line
    advice: str | None = None  # what to do
    data: dict[str, Any] = field(default_factory=dict)  # the figures, for --json

    def __post_init__(self) -> None:
        assert self.state == "ok" or self.advice


def ok(name: str, text: str, **data: Any) -> Finding:
    return Finding(name, "ok", text, None, data)


def warn(name: str, text: str, advice: str, **data: Any) -> Finding:
    return Finding(name, "warn", text, advice, data)


def bad(name: str, text: str, advice: str, **data: Any) -> Finding:
    return Finding(name, "bad", text, advice, data)
