"""Sessions as JSON files, which appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from onceread.library.session_tree import MessageTree, Node, Role, SessionError

FORMAT = "onceread-session"
VERSION = 1


@dataclass(frozen=True)
class Stored:
    """What a file holds."""

    tree: MessageTree
    system: str | None
    options: dict[str, Any]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: int
    parent: int | None
    role: Role
    content: str
    partial: bool = False


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    system: str | None
    options: dict[str, Any]
    head: int | None
    messages: list[_Message]


def write_session(path: Path, stored: Stored) -> None:
    """Put it there, for this user's eyes only. Raises OSError, and SessionError for options JSON has no form for."""
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "system": stored.system,
        "options": _plain(stored.options),
        "head": stored.tree.head,
        "messages": [asdict(node) for node in stored.tree.nodes],
    }
    write_whole(path, json.dumps(whole, ensure_ascii=False, indent=1) + "\n")


def read_session(path: Path) -> Stored:
    """What is there. Raises OSError, and SessionError for a file that is damaged or none of ours."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise SessionError(f"{path} is not a session, or is damaged: it is not JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SessionError(f"{path} is JSON, but not a session of Onceread")
    version = found.get("version")
    if version != VERSION:
        raise SessionError(f"{path} has version {version!r} of the format, and this Onceread reads {VERSION}")
    try:
        file = _File.model_validate(found)
        _check_said(file)
        nodes = [Node(**message.model_dump()) for message in file.messages]
        return Stored(MessageTree(nodes, file.head), file.system, file.options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise SessionError(f"{path} is damaged: {where}: {first['msg']}") from None
    except SessionError as error:
        raise SessionError(f"{path} is damaged: {error}") from None


def _check_said(file: _File) -> None:
    """What JSON can say, and no session. Raises SessionError."""
    for name in ("self", "llama", "system"):
        if name in file.options:
            raise SessionError(f"options: {name} is no option of a reply")
    try:
        "".join([file.system or "", *(message.content for message in file.messages)]).encode()
    except UnicodeEncodeError:
        raise SessionError("a message holds half a character (a lone surrogate)") from None


def write_whole(path: Path, text: str) -> None:
    """The file ``path`` with this text, mode 0600: a reader finds the old one or the new one. Raises OSError."""
    path = path.resolve()  # a link stays one
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if not _is_json(value):
            raise SessionError(
                f"the option {name} can't be saved ({type(value).__name__} is not JSON): "
                "give it to each call instead of to the Session"
            )
    return dict(options)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
