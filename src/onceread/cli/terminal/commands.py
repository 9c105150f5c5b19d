"""The commands of `onceread chat`: their names and what they are for, in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    name: str
    arguments: str
    help: str

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.arguments}".strip()


COMMANDS = (
    Command("regen", "", "write the last reply again; the old one stays a branch"),
    Command("edit", "[N]", "change message N (default: your last one); if it is yours, it is answered anew"),
    Command("undo", "", "take your last message and its reply back; it stands on the line again"),
    Command("messages", "", "show the conversation, numbered"),
    Command("branches", "", "list the conversation's branches"),
    Command("switch", "BRANCH", "go to another branch"),
    Command("fork", "", "go on in a copy, and leave the chat as it is"),
    Command("system", "[TEXT|none]", "show, change or remove the system prompt"),
    Command("persona", "FILE", "take the system prompt from a text file or a character card (JSON)"),
    Command("set", "[NAME [VALUE]]", "show or change options such as temperature 0.7; `default` resets one"),
    Command("stats", "", "what the last reply cost: tokens read, reused and from where, first token"),
    Command("save", "[FILE]", "save a copy; without FILE, say where the chat is kept"),
    Command("load", "[NAME|FILE]", "go to another chat; without a name, list them"),
    Command("new", "", "begin another chat"),
    Command("help", "", "list the commands"),
    Command("quit", "", "end (also Ctrl+D)"),
)

KEYS = (
    ("Enter", "sends the message"),
    ("Esc Enter, or \\ Enter", "begins another line"),
    ("Ctrl+C", "stops the reply, and keeps what was written of it"),
    ("Up, Down", "go through what you said before"),
    ("Tab", "completes commands"),
    ("//", "begins a message that begins with a slash"),
)


class CommandUnknown(Exception):
    """The message is one line."""


def parse(text: str) -> tuple[str, str]:
    """A command's name and what stands behind it. Raises CommandUnknown."""
    name, _, rest = text[1:].partition(" ")
    name = {"exit": "quit", "regenerate": "regen"}.get(name, name)
    if name not in {command.name for command in COMMANDS}:
        raise CommandUnknown(f"there is no command /{name}: /help lists them, and // begins a message with /")
    return name, rest.strip()
