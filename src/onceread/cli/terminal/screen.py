"""The terminal's output. Whatever comes from a model, a server or a file can't control the terminal."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_KEPT = "\n\t"
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


def clean(text: str) -> str:
    """Without control characters but line breaks and tabs: no escape sequence can begin.

    That takes ESC, its one-character forms (U+0080 to U+009F), backspaces, bells and carriage returns.
    """
    if text.isprintable():
        return text
    return "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in ("Cc", "Cs"))


def line(text: str, limit: int = 60) -> str:
    """The beginning of a text on one line, cleaned."""
    text = " ".join(clean(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Screen:
    """Replies in pieces, notes, errors and tables, on stdout."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False)
        self._file = sys.stdout
        self._in_line = False  # is the cursor behind something?
        self._dim = False

    def piece(self, text: str) -> None:
        """A part of the reply."""
        if self._dim:
            self._set_dim(False)
            self.finish()
            self._file.write("\n")
        self._write(text)

    def thought(self, text: str) -> None:
        """A part of what the model thinks: dim, where there are shades."""
        self._set_dim(True)
        self._write(text)

    def finish(self) -> None:
        """The reply is over: whatever follows begins on a line of its own."""
        self._set_dim(False)
        if self._in_line:
            self._write("\n")

    def say(self, text: str, style: str = "") -> None:
        self.finish()
        self._console.print(Text(clean(text), style=style))

    def note(self, text: str) -> None:
        self.say(text, "dim")

    def error(self, text: str) -> None:
        self.say(text, "red")

    def message(self, number: int, who: str, text: str) -> None:
        """One of the conversation's messages."""
        self.finish()
        self._console.print(Text.assemble((f"{number} {who}: ", "bold"), clean(text)))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns whose title begins with ``#`` stand to the right."""
        self.finish()
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            right = column.startswith("#")
            table.add_column(escape(column.removeprefix("#")), justify="right" if right else "left")
        for row in rows:
            table.add_row(*(Text(clean(cell)) for cell in row))
        self._console.print(table)

    def _write(self, text: str) -> None:
        text = clean(text)
        if text:
            self._file.write(text)
            self._file.flush()
            self._in_line = not text.endswith("\n")

    def _set_dim(self, wanted: bool) -> None:
        if wanted != self._dim:
            self._dim = wanted
            if self._console.is_terminal and not self._console.no_color:
                self._file.write(_DIM if wanted else _PLAIN)
