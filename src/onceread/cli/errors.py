"""What a command can't go on with: printed as one line, exit status 1."""

from __future__ import annotations


class CommandError(Exception):
    """The message says what is wrong and what to do about it."""


def one_line(error: BaseException) -> str:
    """An exception's message on one line, as :func:`printable` has it; its name where it has no message."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        message = f"{error.filename}: {error.strerror}"  # without its number
    return printable(" ".join(message.split())) or type(error).__name__


def printable(text: str) -> str:
    """Without what could move the cursor: names and texts come from files, servers and models."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
