"""What a command can't go on with: printed as one line, exit status 1."""

from __future__ import annotations


class CommandError(Exception):
    """The message says what is wrong and what to do about it."""


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks; its name where it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
