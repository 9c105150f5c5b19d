"""Drive `onceread chat` in tmux through every command, and write the screens into docs/chat.md.

    python scripts/chat_screens.py [--check] [arguments for onceread chat]

With ``--check`` it only drives. It needs tmux and the demo model.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceread.cli.terminal.commands import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "chat.md"
WIDTH, HEIGHT = 96, 40
PATIENCE = 120.0  # seconds until something must have appeared
PROMPT = re.compile(r"^>\s*$")
STATS = r"tokens/s"  # the line under a reply


@dataclass(frozen=True)
class Step:
    """Keys, and what must be on the screen afterwards, beside a new prompt."""

    keys: Sequence[str]  # as tmux names them; text is typed as it is
    expects: str = ""
    prompt: bool = True


@dataclass(frozen=True)
class Scene:
    name: str  # of the block in docs/chat.md
    steps: Sequence[Step]


def say(text: str, expects: str = STATS) -> Step:
    return Step((text, "Enter"), expects)


class Tmux:
    """A terminal with nobody before it, on a server of its own."""

    def __init__(self, command: str, environment: dict[str, str]) -> None:
        self._socket = f"onceread-{os.getpid()}"
        size = ("-x", str(WIDTH), "-y", str(HEIGHT))
        variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, *variables, "-s", "chat", command)
        self._tmux("set-option", "-t", "chat", "remain-on-exit", "on")

    def keys(self, *keys: str) -> None:
        for key in keys:
            literal = () if re.fullmatch(r"Enter|Escape|Up|Tab|C-\w", key) else ("-l",)
            self._tmux("send-keys", "-t", "chat", *literal, key)

    def screen(self) -> list[str]:
        found = self._tmux("capture-pane", "-p", "-t", "chat").rstrip("\n").split("\n")
        return [line.rstrip() for line in found]

    def wait(self, expects: str, *, prompt: bool) -> list[str]:
        """The screen, once it holds a match of ``expects`` and, if asked for, ends with an empty prompt."""
        until = time.monotonic() + PATIENCE
        while True:
            lines = self.screen()
            said = [line for line in lines if line]
            ready = not prompt or (said and PROMPT.match(said[-1]))
            if ready and re.search(expects, "\n".join(lines)):
                return lines
            if time.monotonic() > until:
                raise SystemExit(f"waited in vain for {expects!r}:\n" + "\n".join(lines))
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *words], check=True, capture_output=True, text=True
        ).stdout


def scenes(folder: Path) -> list[Scene]:
    card = folder / "ada.json"
    card.write_text(
        json.dumps(
            {
                "name": "Ada",
                "description": "{{char}} keeps a lighthouse, and answers in one short sentence.",
                "first_mes": "Come in, {{user}}. Mind the stairs.",
            }
        )
    )
    copy = folder / "copy.json"
    return [
        Scene(
            "first words",
            [
                say("/set max_tokens 48", "max_tokens = 48"),
                say("/set temperature 0.7", "temperature = 0.7"),
                say("/system You keep a lighthouse. Answer in one short sentence.", "system: You keep"),
                say("Who lights the lamp?"),
            ],
        ),
        Scene("what it cost", [say("And who cleans the glass?"), say("/stats", "in this run")]),
        Scene("another reply", [say("/regen"), say("/branches", r"branch +messages")]),
        Scene(
            "an edit",
            [
                Step(("/edit 1", "Enter"), r"1 you> Who lights the lamp\?", prompt=False),
                Step((" In winter.", "Enter"), STATS),
                say("/messages", "2 model: "),
            ],
        ),
        Scene(
            "stopped",
            [
                say("/set max_tokens 2000", "max_tokens = 2000"),
                say("/set ignore_eos true", "ignore_eos = True"),
                Step(("Tell me everything about the sea.", "Enter"), r"sea\.\n.{200}", prompt=False),
                Step(("C-c",), "it was stopped"),
                say("/set ignore_eos default", "ignore_eos by default"),
                say("/set max_tokens 48", "max_tokens = 48"),
            ],
        ),
        Scene(
            "taken back",
            [
                say("/switch 4", "messages"),
                Step(("/undo", "Enter"), r"taken back[^\n]*\n+> And who", prompt=False),
                Step(("C-u",), ""),
                say("/fork", "goes back"),
                say("/load", "begins with"),
            ],
        ),
        Scene(
            "a persona",
            [
                say("/new", "a new chat"),
                say(f"/persona {card}", "Mind the stairs"),
                Step(("Is it far?\\", "Enter", "I am tired.", "Enter"), STATS),
                say(f"/save {copy}", "a copy is in"),
            ],
        ),
        Scene("help", [say("/help", "Esc Enter")]),
        Scene("the end", [Step(("/quit", "Enter"), "Pane is dead", prompt=False)]),
    ]


def drive(arguments: Sequence[str]) -> dict[str, str]:
    """The screens by their names. Exits with what was waited for in vain."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            "XDG_STATE_HOME": str(folder / "state"),
            "ONCEREAD_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        command = shlex.join([sys.executable, "-m", "onceread", "chat", *arguments])
        used: set[str] = set()
        tmux = Tmux(command, environment)
        try:
            tmux.wait("/help lists the commands", prompt=True)
            for scene in scenes(folder):
                for step in scene.steps:
                    used |= {key.split()[0][1:] for key in step.keys if key.startswith("/")}
                    tmux.keys(*step.keys)
                    tmux.wait(step.expects, prompt=step.prompt)
                found[scene.name] = _tidy(tmux.screen(), folder)
                if scene.name != "the end":
                    tmux.keys("C-l")
                    _cleared(tmux)
        finally:
            tmux.close()
    if missing := {command.name for command in COMMANDS} - used:
        raise SystemExit(f"never typed: {', '.join(sorted(missing))}")
    return found


def _cleared(tmux: Tmux) -> None:
    until = time.monotonic() + PATIENCE
    while [line for line in tmux.screen() if line] != [">"]:
        if time.monotonic() > until:
            raise SystemExit("the screen was not cleared")
        time.sleep(0.05)


def _tidy(lines: Sequence[str], folder: Path) -> str:
    """Without the empty prompt at the end and this run's folder."""
    text = "\n".join(lines).replace(str(folder), "~").rstrip()
    return text.removesuffix("\n>").rstrip()


def write(screens: dict[str, str]) -> None:
    """Put each into its block. Exits if one has no block."""
    page = PAGE.read_text(encoding="utf-8")
    for name, screen in screens.items():
        block = re.compile(rf"(<!-- screen: {re.escape(name)} -->\n```text\n).*?(\n```\n)", re.DOTALL)
        if name == "the end":
            continue
        page, count = block.subn(lambda m, screen=screen: m[1] + screen + m[2], page)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{PAGE} has no block for the screen {name!r}")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    only_drive = "--check" in given
    screens = drive([word for word in given if word != "--check"])
    if only_drive:
        print("\n\n".join(f"--- {name}\n{screen}" for name, screen in screens.items()))
    else:
        write(screens)
