"""Real prose and code that every machine with Python has: its standard library's documentation and source."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Modules that are written in Python, documented at length, and there in every Python from 3.10 on.
_MODULES = (
    "argparse", "ast", "bdb", "calendar", "codecs", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "difflib", "doctest", "enum", "filecmp", "fractions", "functools", "gettext", "heapq", "imaplib",
    "inspect", "locale", "logging/__init__", "mailbox", "optparse", "pdb", "pickle", "pickletools", "plistlib",
    "pprint", "pydoc", "random", "sched", "selectors", "shelve", "shutil", "smtplib", "socket", "socketserver",
    "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "trace",
    "traceback", "turtle", "typing", "unittest/case", "unittest/mock", "urllib/parse", "urllib/request", "uuid",
    "weakref", "zipfile", "zipfile/__init__",
)  # fmt: skip
_CHARS_PER_TOKEN = {"prose": 4.4, "code": 3.2}  # about; what a prompt really has is counted when it is sent
_MIN_PROSE, _MAX_CODE = 80, 2_500  # characters


@dataclass(frozen=True)
class Corpus:
    """Paragraphs and functions in the order of the files they come from."""

    paragraphs: tuple[str, ...]
    functions: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Twelve digits that change with the texts: with Python's version, mostly."""
        joined = "\0".join((*self.paragraphs, "", *self.functions))
        return hashlib.sha256(joined.encode()).hexdigest()[:12]

    def prose(self, rng: random.Random, tokens: int) -> str:
        """Paragraphs of about ``tokens`` tokens, cut after a word."""
        return _filled(rng, self.paragraphs, int(tokens * _CHARS_PER_TOKEN["prose"]), " ")

    def code(self, rng: random.Random, tokens: int) -> str:
        """Functions of about ``tokens`` tokens."""
        return _filled(rng, self.functions, int(tokens * _CHARS_PER_TOKEN["code"]), "\n\n")


def _filled(rng: random.Random, pieces: tuple[str, ...], size: int, between: str) -> str:
    """Pieces in a row from a random one on; every text begins at a place of its own."""
    at = rng.randrange(len(pieces))
    taken, length = [], 0
    while length < size:
        taken.append(pieces[at % len(pieces)])
        length += len(taken[-1]) + len(between)
        at += 1
    text = between.join(taken)[:size]
    return text[: max(text.rfind(" "), text.rfind("\n")) or None].strip() or text


@cache
def standard_library() -> Corpus:
    """The texts of this Python. Raises FileNotFoundError where its library is installed without sources."""
    root = Path(sysconfig.get_path("stdlib"))
    paragraphs: list[str] = []
    functions: list[str] = []
    for name in _MODULES:
        file = root / f"{name}.py"
        if not file.is_file():
            continue
        source = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                paragraphs += _paragraphs(ast.get_docstring(node) or "")
            if isinstance(node, ast.FunctionDef):
                code = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
                if 200 < len(code) < _MAX_CODE and code.isascii():
                    functions.append(code)
    if len(paragraphs) < 200 or len(functions) < 200:
        raise FileNotFoundError(
            f"{root} lacks the standard library's sources, which the benchmark's texts are"
        )
    return Corpus(tuple(paragraphs), tuple(functions))


def _paragraphs(docstring: str) -> list[str]:
    joined = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", docstring))
    return [p for p in joined if len(p) >= _MIN_PROSE and p.isascii() and ">>>" not in p and "----" not in p]
