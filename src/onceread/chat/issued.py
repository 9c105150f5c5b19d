"""The tool calls that were handed out: how the model wrote each, by the id under which a client brings it back.

A client sends a call back as JSON of its own making. Written as the model wrote it, it is the text that was read
already; written otherwise, everything from there on would be read again. Kept in RAM only: after a restart a
call is rendered as the template would, unless it belongs to a stored response, which brings its words along.
"""

from __future__ import annotations

import secrets
import string
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from onceread.chat.callreader import parse_object
from onceread.chat.toolcalls import Wording

_LETTERS = string.ascii_letters + string.digits
_BYTES_PER_CALL = 600


@dataclass(frozen=True, slots=True)
class Issued:
    """One call."""

    name: str
    arguments: str
    wording: Wording


class IssuedCalls:
    """Calls by namespace and id, the least recently used dropped beyond a limit. Thread-safe."""

    def __init__(self, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._limit = max_bytes
        self._used = 0
        self._calls: OrderedDict[tuple[str, str], Issued] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, namespace: str, call_id: str, call: Issued) -> None:
        with self._lock:
            before = self._calls.pop((namespace, call_id), None)
            self._calls[namespace, call_id] = call
            self._used += _size(call) - (_size(before) if before else 0)
            while self._used > self._limit:
                self._used -= _size(self._calls.popitem(last=False)[1])

    def find(self, namespace: str, call_id: str | None, name: str, arguments: str) -> Issued | None:
        """The call of this id, if it says the same: the same function, the same arguments as JSON."""
        if call_id is None:
            return None
        with self._lock:
            call = self._calls.get((namespace, call_id))
            if call is not None:
                self._calls.move_to_end((namespace, call_id))
        if call is None or call.name != name:
            return None
        if call.arguments == arguments:
            return call
        ours, theirs = parse_object(call.arguments), parse_object(arguments.strip() or "{}")
        return call if ours is not None and theirs is not None and _same(ours, theirs) else None

    def own_id(self, namespace: str, call_id: str) -> str | None:
        """The id that the model itself gave this call."""
        with self._lock:
            call = self._calls.get((namespace, call_id))
        return call.wording.own_id if call else None


def new_call_id(*, short: bool) -> str:
    """An id that nobody can guess. ``short``: nine letters and digits, which Mistral's templates want."""
    if short:
        return "".join([secrets.choice(_LETTERS) for _ in range(9)])
    return f"call_{secrets.token_hex(12)}"


def _size(call: Issued) -> int:
    return _BYTES_PER_CALL + 4 * (len(call.name) + len(call.arguments) + len(call.wording.inside))


def _same(one: Any, other: Any) -> bool:
    """Do both say the same as JSON? Python takes true for 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
