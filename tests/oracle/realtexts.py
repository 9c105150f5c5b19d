"""Texts as people and models write them: prose, code, licences, CJK, emoji, numbers, unusual white space."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

_EMOJI = [*map(chr, range(0x1F600, 0x1F640)), "👩‍👩‍👧", "👍🏽", "🇫🇷", "❤️", "🏳️‍🌈", "1️⃣"]
_CJK = [*map(chr, range(0x4E00, 0x5200)), *map(chr, range(0x3042, 0x3094)), *map(chr, range(0xAC00, 0xAD00))]
_SPACES = [" ", " ", "  ", "\t", "\n", "\n\n", " \n", "\n  ", "\r\n", "\u00a0", "    ", "\n\n\n", "\u3000"]


def prose(rng: random.Random) -> str:
    return _stretch(topics[rng.choice(sorted(topics))], rng)


def code(rng: random.Random) -> str:
    return _stretch(rng.choice(_sources()), rng)


def licence(rng: random.Random) -> str:
    return _stretch(rng.choice(_licences()), rng)


def cjk(rng: random.Random) -> str:
    return "".join(
        "，。、！ \n"[rng.randrange(6)] if rng.random() < 0.1 else rng.choice(_CJK) for _ in range(60)
    )


def emoji(rng: random.Random) -> str:
    words = prose(rng).split(" ")
    return " ".join(word + rng.choice(["", "", " "]) + rng.choice(_EMOJI) for word in words[:25])


def numbers(rng: random.Random) -> str:
    kinds: list[Callable[[], str]] = [
        lambda: f"{rng.randrange(10**9):,}",
        lambda: f"{rng.random() * 1000:.4f}",
        lambda: f"-{rng.randrange(10**15)}",
        lambda: f"{rng.randrange(2**40):#x}",
        lambda: f"20{rng.randrange(100):02}-{rng.randrange(1, 13):02}-01T0{rng.randrange(10)}:30",
        lambda: f"{rng.random():.3e}",
    ]
    return " ".join(rng.choice(kinds)() for _ in range(25))


def white_space(rng: random.Random) -> str:
    return "".join(word + rng.choice(_SPACES) for word in prose(rng).split())


KINDS = [prose, code, licence, cjk, emoji, numbers, white_space]


def some_text(rng: random.Random) -> str:
    """Some hundred characters of one kind or of two."""
    text = "".join(kind(rng) for kind in rng.sample(KINDS, rng.choice([1, 1, 2])))
    # The vocabulary of SmolLM2 lacks some control characters: its tokenizer drops them.
    return "".join(c for c in text if c >= " " or c in "\n\r\t")


def _stretch(text: str, rng: random.Random) -> str:
    start = rng.randrange(max(1, len(text) - 100))
    return text[start : start + rng.randrange(100, 400)]


@cache
def _sources() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [text for file in files if len(text := file.read_text("utf-8", errors="ignore")) > 1000]


@cache
def _licences() -> list[str]:
    files = sorted(Path(sysconfig.get_path("purelib")).glob("*.dist-info/**/*LICENSE*"))
    texts = [file.read_text("utf-8", errors="ignore") for file in files if file.is_file()]
    return [text for text in texts if len(text) > 500] or [str(topics["assert"])]
