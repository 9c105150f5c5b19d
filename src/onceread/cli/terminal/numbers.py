"""A reply's numbers in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from onceread.library.reply import INTERRUPTED, Reply

_ENDS = {"stop": "the model ended it", "length": "it reached its limit", INTERRUPTED: "it was stopped"}


def short(reply: Reply) -> str:
    """One line to stand under a reply."""
    parts = []
    if reply.evaluated is not None and reply.prompt_tokens is not None:
        parts.append(f"read {reply.evaluated:,} of {_tokens(reply.prompt_tokens)}")
    if reply.first_token_seconds is not None:
        parts.append(f"first token after {reply.first_token_seconds:.2f} s")
    if reply.tokens_per_second is not None:
        parts.append(f"{reply.tokens_per_second:.0f} tokens/s")
    if reply.finish_reason != "stop":
        parts.append(_ENDS.get(reply.finish_reason, reply.finish_reason))
    return " · ".join(parts)


@dataclass
class Totals:
    """What all replies of one run came to."""

    replies: int = 0
    untold: int = 0  # replies that were stopped before their server told
    evaluated: int = 0
    cached: int = 0
    sources: dict[str, int] = field(default_factory=dict)

    def add(self, reply: Reply) -> None:
        self.replies += 1
        self.untold += reply.evaluated is None
        self.evaluated += reply.evaluated or 0
        self.cached += reply.cached_tokens or 0
        for source, tokens in (reply.cached_by_source or {}).items():
            self.sources[source] = self.sources.get(source, 0) + tokens


def rows(reply: Reply, totals: Totals) -> list[tuple[str, str]]:
    """For a table: what, and how much."""
    first = "-" if reply.first_token_seconds is None else f"after {reply.first_token_seconds:.2f} s"
    speed = "" if reply.tokens_per_second is None else f", {reply.tokens_per_second:.1f} a second"
    end = _ENDS.get(reply.finish_reason, reply.finish_reason)
    return [
        ("prompt", _count(reply.prompt_tokens)),
        ("  read", _count(reply.evaluated)),
        ("  reused", _count(reply.cached_tokens) + _from(reply.cached_by_source)),
        ("first token", first),
        ("reply", f"{_count(reply.completion_tokens)}{speed}; {end}"),
        (
            "in this run",
            f"{totals.replies:,} {'reply' if totals.replies == 1 else 'replies'}, "
            f"read {_tokens(totals.evaluated)}, reused {totals.cached:,}{_from(totals.sources)}"
            + (f"; {totals.untold:,} not told" if totals.untold else ""),
        ),
    ]


def _from(sources: dict[str, int] | None) -> str:
    named = [f"{source} {tokens:,}" for source, tokens in (sources or {}).items() if tokens]
    return f" ({', '.join(named)})" if named else ""


def _count(tokens: int | None) -> str:
    return "not told" if tokens is None else _tokens(tokens)


def _tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"
