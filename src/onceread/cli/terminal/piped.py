"""`onceread chat` without a terminal: messages from stdin, nothing but replies on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from onceread.cli.terminal.screen import clean
from onceread.library.session import Session


def messages(source: TextIO, *, whole: bool) -> Iterator[str]:
    """Each line that is not blank, or all of it as one."""
    if whole:
        text = source.read().strip("\r\n")
        if text.strip():
            yield text
        return
    for line in source:
        if line.strip():
            yield line.rstrip("\r\n")


def run_piped(session: Session, texts: Iterator[str], keep: Callable[[], None]) -> None:
    """Answer each; ``keep`` is called after each reply. Raises what a reply fails with."""
    for text in texts:
        last = ""
        for piece in session.stream(text):
            shown = clean(piece)
            sys.stdout.write(shown)
            sys.stdout.flush()
            last = shown or last
        if not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
        keep()
