"""What every SQLite file of ours needs: transactions that leave nothing open, and damage told from other errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_DAMAGE = (
    "malformed",
    "not a database",
    "no such table",
    "no such column",
    "no such index",
    "unsupported file format",
)


def in_transaction(connection: sqlite3.Connection, begin: str, work: Callable[[], T]) -> T:
    """The result of ``work`` between ``begin`` and a commit; undone if it raises."""
    connection.execute(begin)
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # what went wrong first is what is told
                connection.execute("ROLLBACK")
        raise
    return result


def is_damage(error: sqlite3.Error) -> bool:
    """Is the file no good, rather than busy, full or out of reach?"""
    return any(words in str(error) for words in _DAMAGE)
