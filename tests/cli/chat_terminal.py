"""`onceread chat` on a pseudo-terminal: type, and wait for what must appear."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType

import pexpect

READY = "\x1b[?2004h"  # prompt_toolkit asks for pasted text to be marked: it waits for a message
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[@-Z\\-_=>]")


class ChatTerminal:
    """A chat as a process. ``state`` is where it keeps its sessions."""

    def __init__(self, *arguments: str, state: Path) -> None:
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(state),
            "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
            "TERM": "xterm-256color",
        }
        for name in ("NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "onceread", "chat", *arguments],
            env=environment,  # type: ignore[arg-type]
            encoding="utf-8",
            dimensions=(50, 120),
            timeout=20,
        )

    def ready(self) -> str:
        """Wait until it asks for a message; what it showed until then, without escape sequences."""
        self.child.expect_exact(READY)
        return plain(self.child.before or "")

    def type(self, text: str) -> None:
        """Keys as they are."""
        self.child.send(text)

    def say(self, text: str) -> str:
        """Type a line, send it, and wait for the next prompt; what was shown."""
        self.type(text + "\r")
        return self.ready()

    def see(self, text: str) -> None:
        """Wait for a text that comes in one piece."""
        self.child.expect_exact(text)

    def end(self) -> str:
        """Wait until it has ended by itself, in good order; its last words."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert self.child.exitstatus == 0, self.child.before
        return plain(self.child.before or "")

    def __enter__(self) -> ChatTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.child.close(force=True)


def plain(text: str) -> str:
    """Without escape sequences."""
    return _ESCAPES.sub("", text)
