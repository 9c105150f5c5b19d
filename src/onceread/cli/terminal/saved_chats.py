"""Where chats are kept between runs: a folder for each model or server, a file for each chat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import platformdirs
from blake3 import blake3

from onceread.library.session import Chats, Session
from onceread.library.session_tree import SessionError
from onceread.models.home import expanded

_LISTED = 20


def state_folder() -> Path:
    """This program's folder for what is neither configuration nor cache. It may not exist yet."""
    return platformdirs.user_state_path("onceread")


@dataclass(frozen=True)
class SavedChat:
    """One of the files."""

    path: Path
    saved_at: datetime
    messages: int
    begins: str


class SavedChats:
    """The chats with one model. ``name`` is for people, ``identity`` tells models of one name apart."""

    def __init__(self, name: str, identity: str) -> None:
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "model"
        self.folder = state_folder() / "chats" / f"{word}-{blake3(identity.encode()).hexdigest()[:8]}"

    def latest(self) -> Path | None:
        """The one that was last saved."""
        return next(iter(self._newest_first()), None)

    def fresh(self) -> Path:
        """A path for a new one, named by the time. Raises OSError if there can be no folder."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
        number = 1
        while (path := self.folder / f"{now}{f'-{number}' if number > 1 else ''}.json").exists():
            number += 1
        return path

    def find(self, name: str) -> Path:
        """The file of this name, here or anywhere."""
        here = self.folder / (name if name.endswith(".json") else f"{name}.json")
        return here if here.is_file() else expanded(name)

    def name_of(self, path: Path) -> str:
        """What `find` finds it by."""
        return path.stem if path.parent == self.folder else str(path)

    def listing(self, llama: Chats) -> list[SavedChat]:
        """The last ones, the newest first. Files that are no sessions are left out."""
        found = []
        for path in self._newest_first()[:_LISTED]:
            try:
                messages = Session.load(path, llama).messages
                saved_at = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            except (OSError, SessionError):
                continue
            found.append(SavedChat(path, saved_at, len(messages), messages[0]["content"] if messages else ""))
        return found

    def _newest_first(self) -> list[Path]:
        found: list[tuple[int, Path]] = []
        if self.folder.is_dir():
            for path in self.folder.glob("[!.]*.json"):
                try:
                    found.append((path.stat().st_mtime_ns, path))
                except OSError:  # noqa: PERF203 - it has just gone
                    continue
        return [path for _, path in sorted(found, reverse=True)]


class ChatFile:
    """The file that a chat is saved to after each step. Two terminals on one chat do not undo each other."""

    def __init__(self, path: Path, saved: SavedChats) -> None:
        self.path = path
        self._saved = saved
        self._left = _identity(path)

    def save(self, session: Session) -> bool:
        """False if the file was changed by somebody else: then there is a new one. Raises OSError."""
        ours = _identity(self.path) == self._left
        if not ours:
            self.path = self._saved.fresh()
        session.save(self.path)
        self._left = _identity(self.path)
        return ours


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
