"""Requests as a coding agent sends them: long instructions, many tools, and turns of calls and results."""

from __future__ import annotations

import random
from typing import Any

_WORDS = """
read write file path line range edit search pattern result error command shell run test build commit
branch return string number list optional required default limit offset encoding directory recursive
match replace create delete move copy status message output input timeout seconds environment
variable process server never always must should only when before after each every other unless
because without within
""".split()  # noqa: SIM905


def prose(rng: random.Random, words: int) -> str:
    """Sentences of such words."""
    said: list[str] = []
    while words > 0:
        n = min(words, rng.randint(6, 16))
        said.append(" ".join(rng.choice(_WORDS) for _ in range(n)).capitalize() + ".")
        words -= n
    return " ".join(said)


def tools(rng: random.Random, count: int, words: int = 60) -> list[dict[str, Any]]:
    """``count`` tools of about ``words`` words of description and two parameters each."""
    made = []
    for i in range(count):
        properties = {
            f"{rng.choice(_WORDS)}_{k}": {"type": "string", "description": prose(rng, 10), "maxLength": 8}
            for k in range(2)
        }
        made.append(
            {
                "type": "function",
                "function": {
                    "name": f"{rng.choice(_WORDS)}_{i}",
                    "description": prose(rng, words),
                    "parameters": {
                        "type": "object",
                        "properties": properties,
                        "required": sorted(properties),
                        "additionalProperties": False,
                    },
                },
            }
        )
    return made
