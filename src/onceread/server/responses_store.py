"""The stored responses: each its own new items and what it answered, found by id within its namespace.

A conversation is a chain of responses, newest to oldest by ``previous``; it is walked when it is gone on with, and
then all of it counts as used. So what an old response needs is never older than itself, and goes after it: the
least recently used leave first, by age and where the bytes exceed the limit.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import xxhash

from onceread.cache.errors import CacheError
from onceread.cache.names import namespace_id
from onceread.chat.issued import Issued
from onceread.chat.toolcalls import Wording
from onceread.server.responses_database import ResponsesDatabase

log = logging.getLogger(__name__)

Item = dict[str, Any]

_DAY = 24 * 3600.0
_TOUCH = 3600.0  # seconds after which reading a chain counts as a use again
_BYTES_PER_ROW = 300

_CHAIN = """
WITH RECURSIVE chain (id, previous, used, depth) AS (
    SELECT id, previous, used, 0 FROM responses WHERE id = :id AND owner = :owner AND used >= :oldest
    UNION ALL
    SELECT r.id, r.previous, r.used, chain.depth + 1
    FROM chain JOIN responses r ON r.id = chain.previous WHERE r.owner = :owner
)
"""
_TOUCH_CHAIN = f"{_CHAIN} UPDATE responses SET used = :now WHERE id IN (SELECT id FROM chain) AND used < :now"


class ResponseMissing(CacheError):
    """There is no such response in the namespace; its id is the message."""


class TooLarge(CacheError):
    """A response exceeds the limit alone."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a response adds to a conversation."""

    id: str
    previous: str | None
    input: Sequence[Item]  # only its own
    output: Sequence[Item]
    calls: dict[str, Issued]  # by call id: in which words the model wrote them
    form: str  # the format of these words

    def dumped(self) -> str:
        calls = {
            key: [c.name, c.arguments, c.wording.inside, c.wording.before, c.wording.own_id]
            for key, c in self.calls.items()
        }
        fields = {"input": list(self.input), "output": list(self.output), "calls": calls, "form": self.form}
        return json.dumps(fields, ensure_ascii=False)

    @staticmethod
    def loaded(response_id: str, previous: str | None, text: str) -> Turn:
        fields = json.loads(text)
        calls = {
            key: Issued(name, arguments, Wording(inside, before, own_id))
            for key, (name, arguments, inside, before, own_id) in fields["calls"].items()
        }
        return Turn(response_id, previous, fields["input"], fields["output"], calls, fields["form"])


class ResponseStore:
    """Thread-safe; every method may wait for the disk, and raises DiskUnusable where that fails."""

    def __init__(self, directory: Path | None, *, keep_days: float, max_bytes: int) -> None:
        """``directory``: the cache's; None keeps everything in RAM."""
        self._database = ResponsesDatabase(directory)
        self._keep = keep_days * _DAY
        self._limit = max_bytes

    def put(self, namespace: str, turn: Turn, response: dict[str, Any]) -> None:
        """Store it: committed when this returns. Raises TooLarge."""
        texts = (json.dumps(response, ensure_ascii=False), turn.dumped())
        items = [item["id"] for item in (*turn.input, *turn.output)]
        size = sum([len(text.encode()) for text in texts]) + _BYTES_PER_ROW * (1 + len(items))
        if size > self._limit:
            raise TooLarge(f"the response takes {size:,} bytes, and at most {self._limit:,} are kept of all")
        self._database.change(partial(self._put, namespace_id(namespace), turn, texts, items, size))

    def response(self, namespace: str, response_id: str) -> dict[str, Any]:
        """What was answered. Raises ResponseMissing."""
        found: dict[str, Any] = json.loads(self._text(namespace, response_id, "response"))
        return found

    def turn(self, namespace: str, response_id: str) -> Turn:
        """What it added to its conversation. Raises ResponseMissing."""
        return Turn.loaded(response_id, None, self._text(namespace, response_id, "turn"))

    def chain(self, namespace: str, response_id: str) -> list[Turn]:
        """The whole conversation up to a response, oldest first.

        Raises ResponseMissing with the id of the first one that is missing.
        """
        asked = self._asked(namespace, response_id)

        def look(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(
                f"{_CHAIN} SELECT chain.id, previous, used, turn, turn_digest"
                " FROM chain LEFT JOIN texts ON texts.id = chain.id ORDER BY depth DESC",
                asked,
            ).fetchall()

        rows = self._database.look(look)
        if not rows:
            raise ResponseMissing(response_id)
        if (before := rows[0][1]) is not None:
            raise ResponseMissing(before)
        turns = []
        for row_id, previous, _, text, digest in rows:
            self._check(row_id, text, digest)
            turns.append(Turn.loaded(row_id, previous, text))
        if rows[-1][2] < asked["now"] - _TOUCH:
            self._database.change(partial(_touch, asked))
        return turns

    def holder(self, namespace: str, item_id: str) -> Turn | None:
        """The newest response that has an item of this id."""
        owner, oldest = namespace_id(namespace), self._oldest()

        def look(connection: sqlite3.Connection) -> tuple[str] | None:
            found: tuple[str] | None = connection.execute(
                "SELECT r.id FROM items i JOIN responses r ON r.id = i.response"
                " WHERE i.owner = ? AND i.id = ? AND r.used >= ? ORDER BY r.created DESC LIMIT 1",
                (owner, item_id, oldest),
            ).fetchone()
            return found

        found = self._database.look(look)
        try:
            return None if found is None else self.turn(namespace, found[0])
        except ResponseMissing:  # deleted between the two looks, or damaged
            return None

    def delete(self, namespace: str, response_id: str) -> None:
        """Raises ResponseMissing."""
        row = (response_id, namespace_id(namespace), self._oldest())

        def change(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM responses WHERE id = ? AND owner = ? AND used >= ?", row
            ).rowcount

        if not self._database.change(change):
            raise ResponseMissing(response_id)

    def clear(self, namespaces: Collection[str] | None) -> int:
        """Forget all of these namespaces, or of everyone: the bytes freed."""
        if not self._database.exists:
            return 0
        owners = None if namespaces is None else [namespace_id(name) for name in namespaces]

        def change(connection: sqlite3.Connection) -> int:
            before = _total(connection)
            if owners is None:
                connection.execute("DELETE FROM responses")
            else:
                connection.executemany(
                    "DELETE FROM responses WHERE owner = ?", [(owner,) for owner in owners]
                )
            return before - _total(connection)

        return self._database.change(change)

    def close(self) -> None:
        self._database.close()

    def _put(
        self,
        owner: bytes,
        turn: Turn,
        texts: tuple[str, str],
        items: Sequence[str],
        size: int,
        connection: sqlite3.Connection,
    ) -> None:
        now = time.time()
        connection.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)",
            (turn.id, owner, turn.previous, now, now, size),
        )
        digests = [_digest(turn.id, text) for text in texts]
        connection.execute("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", (turn.id, *texts, *digests))
        connection.executemany(
            "INSERT OR IGNORE INTO items VALUES (?, ?, ?)", [(owner, item, turn.id) for item in items]
        )
        if turn.previous is not None:
            _touch({"id": turn.previous, "owner": owner, "oldest": self._oldest(), "now": now}, connection)
        connection.execute("DELETE FROM responses WHERE used < ?", (now - self._keep,))
        while (over := _total(connection) - self._limit) > 0:
            # Of a chain that was used at once the newest goes first: its beginning is still one.
            oldest = connection.execute(
                "SELECT id, bytes FROM responses WHERE id != ? ORDER BY used, created DESC LIMIT 64",
                (turn.id,),
            ).fetchall()
            if not oldest:
                break
            gone = []
            for row_id, freed in oldest:
                if over > 0:
                    gone.append((row_id,))
                    over -= freed
            connection.executemany("DELETE FROM responses WHERE id = ?", gone)

    def _text(self, namespace: str, response_id: str, what: Literal["response", "turn"]) -> str:
        asked = self._asked(namespace, response_id)

        def look(connection: sqlite3.Connection) -> tuple[str, bytes] | None:
            found: tuple[str, bytes] | None = connection.execute(
                f"SELECT {what}, {what}_digest FROM texts JOIN responses r ON r.id = texts.id"
                " WHERE r.id = :id AND owner = :owner AND used >= :oldest",
                asked,
            ).fetchone()
            return found

        found = self._database.look(look)
        if found is None:
            raise ResponseMissing(response_id)
        self._check(response_id, *found)
        return found[0]

    def _check(self, response_id: str, text: object, digest: object) -> None:
        """SQLite does not see a flipped bit inside of a text. Raises ResponseMissing."""
        if isinstance(text, str) and digest == _digest(response_id, text):
            return
        log.warning("stored responses: %s is damaged, and dropped", response_id)

        def drop(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))

        self._database.change(drop)
        raise ResponseMissing(response_id)

    def _asked(self, namespace: str, response_id: str) -> dict[str, Any]:
        return {
            "id": response_id,
            "owner": namespace_id(namespace),
            "oldest": self._oldest(),
            "now": time.time(),
        }

    def _oldest(self) -> float:
        return time.time() - self._keep


def _touch(asked: dict[str, Any], connection: sqlite3.Connection) -> None:
    connection.execute(_TOUCH_CHAIN, asked)


def _total(connection: sqlite3.Connection) -> int:
    (total,) = connection.execute("SELECT bytes FROM total").fetchone()
    return int(total)


def _digest(*texts: str) -> bytes:
    return xxhash.xxh3_128_digest("\0".join(texts).encode())
