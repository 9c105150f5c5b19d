"""`onceread chat` on a terminal: asks, streams the replies, and obeys commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from onceread.cli.errors import one_line
from onceread.cli.model_file import short as short_path
from onceread.cli.terminal import commands, numbers
from onceread.cli.terminal.connection import Connection
from onceread.cli.terminal.generation import OptionInvalid, option_names, parse_option, unknown
from onceread.cli.terminal.persona import Persona, PersonaInvalid, read_persona
from onceread.cli.terminal.saved_chats import ChatFile, SavedChats
from onceread.cli.terminal.screen import Screen, line
from onceread.library.session import Session
from onceread.library.session_tree import SessionError
from onceread.models.home import expanded

_PROBLEMS = (SessionError, OptionInvalid, PersonaInvalid, commands.CommandUnknown, OSError)


class Asks(Protocol):
    """Where messages come from: a `Keyboard`."""

    def ask(self, default: str = "", mark: str = "> ") -> str: ...


class Conversation:
    """One run of the chat. With ``file`` None nothing is kept."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        screen: Screen,
        keyboard: Asks,
        saved: SavedChats,
        file: ChatFile | None,
    ) -> None:
        self._connection = connection
        self._screen = screen
        self._keyboard = keyboard
        self._saved = saved
        self._file = file
        self._totals = numbers.Totals()
        self._unsent = ""  # a message that got no reply, to be sent again
        self._use(session)

    def run(self) -> None:
        """Until the user ends it."""
        while True:
            try:
                text = self._keyboard.ask(self._unsent)
            except EOFError:
                return
            except KeyboardInterrupt:
                self._unsent = ""
                self._screen.note("Ctrl+D or /quit ends the chat")
                continue
            self._unsent = ""
            if not text.strip():
                continue
            if text.startswith("/") and not text.startswith("//"):
                if not self._obey(text.strip()):
                    return
            else:
                self._say(text[1:] if text.startswith("//") else text)

    def greet(self, persona: Persona) -> None:
        """Let the persona say the first word."""
        if persona.greeting:
            self._session.append("assistant", persona.greeting)
            self._screen.piece(persona.greeting)
            self._screen.finish()
            self._keep()

    def _use(self, session: Session) -> None:
        self._session = session
        session.on_reasoning = self._screen.thought

    # -- replies -----------------------------------------------------------

    def _say(self, text: str) -> None:
        self._reply(lambda: self._session.stream(text), unsent=text)

    def _reply(self, ask: Callable[[], Iterator[str]], unsent: str = "") -> None:
        """Show a reply while it is written. ``unsent`` is offered again if there is none."""
        before = self._session.last
        try:
            with contextlib.ExitStack() as stack:
                pieces = ask()
                if callable(close := getattr(pieces, "close", None)):
                    stack.callback(close)
                for piece in pieces:
                    self._screen.piece(piece)
        except KeyboardInterrupt:
            self._screen.finish()
            if self._session.last is before:
                self._unsent = unsent
                self._screen.note("stopped before anything was written; the chat is as it was")
                return
        except self._connection.problems as error:
            self._unsent = unsent
            self._screen.error(f"no reply: {one_line(error)}")
            return
        self._screen.finish()
        reply = self._session.last
        if reply is not None and reply is not before:
            self._totals.add(reply)
            self._screen.note(numbers.short(reply))
        self._keep()

    def _keep(self) -> None:
        """Save, if anything was said. A full disk does not end the chat."""
        if self._file is None or not self._session.branches[-1].messages:
            return
        try:
            if not self._file.save(self._session):
                self._screen.note(
                    f"this chat was changed elsewhere: it goes on in {short_path(self._file.path)}"
                )
        except OSError as error:
            self._screen.error(f"the chat can't be saved: {error.strerror or error}")

    # -- commands ----------------------------------------------------------

    def _obey(self, text: str) -> bool:
        """Do what a command says. False if it ends the chat."""
        try:
            name, rest = commands.parse(text)
            if name == "quit":
                return False
            getattr(self, f"_do_{name}")(rest)
        except _PROBLEMS as error:
            self._screen.error(one_line(error))
        except KeyboardInterrupt:
            self._screen.note("left as it was")
        return True

    def _do_regen(self, _: str) -> None:
        self._reply(self._session.stream_regenerate)

    def _do_edit(self, rest: str) -> None:
        messages = self._session.messages
        if rest:
            number = _number(rest)
        else:
            number = max((i for i, m in enumerate(messages, 1) if m["role"] == "user"), default=0)
        if not 1 <= number <= len(messages):
            raise SessionError(f"there is no message {rest or 'of yours'}: /messages shows what there is")
        old = messages[number - 1]
        try:
            text = self._keyboard.ask(old["content"], mark=f"{number} {_who(old['role'])}> ")
        except EOFError:
            text = ""
        if not text.strip():
            self._screen.note("left as it was")
        elif old["role"] == "user":
            self._reply(lambda: self._session.stream_edit(number - 1, text))
        else:
            self._session.edit(number - 1, text)
            self._keep()
            self._screen.note(f"message {number} is changed; the chat goes on behind it")

    def _do_undo(self, _: str) -> None:
        self._unsent = self._session.undo()
        self._keep()
        self._screen.note("taken back, onto the line below; it stays a branch")

    def _do_messages(self, _: str) -> None:
        if self._session.system:
            self._screen.note(f"system: {self._session.system}")
        for number, message in enumerate(self._session.messages, 1):
            stopped = " (stopped)" if message.get("partial") else ""
            self._screen.message(number, _who(message["role"]) + stopped, message["content"])
        if not self._session.messages:
            self._screen.note("nothing was said yet")

    def _do_branches(self, _: str) -> None:
        rows = [
            (
                "*" if branch.current else "",
                str(branch.id),
                str(branch.messages),
                line(branch.text) or "(the beginning)",
            )
            for branch in self._session.branches
        ]
        self._screen.table(("", "#branch", "#messages", "ends with"), rows)

    def _do_switch(self, rest: str) -> None:
        if not rest:
            raise SessionError("which one? /branches lists them")
        self._session.switch(_number(rest))
        self._keep()
        self.show_end()

    def _do_fork(self, _: str) -> None:
        if self._file is None:
            raise SessionError("nothing is kept of this chat (--session none); /branches has its other ways")
        if not self._session.messages:
            raise SessionError("nothing was said yet")
        old = self._file.path
        self._use(self._session.fork())
        self._file = ChatFile(self._saved.fresh(), self._saved)
        self._keep()
        self._screen.note(
            f"this goes on as {self._saved.name_of(self._file.path)}; /load {self._saved.name_of(old)} goes back"
        )

    def _do_system(self, rest: str) -> None:
        if rest:
            self._session.system = None if rest == "none" else rest
            self._keep()
        self._screen.note(f"system: {self._session.system}" if self._session.system else "no system prompt")

    def _do_persona(self, rest: str) -> None:
        if not rest:
            raise PersonaInvalid("which one? /persona FILE")
        persona = read_persona(Path(rest))
        self._session.system = persona.system
        self._screen.note(f"the model is {persona.name} now")
        if not self._session.messages:
            self.greet(persona)
        elif persona.greeting:
            self._screen.note("its greeting is for a chat's beginning: /new begins one")
        self._keep()

    def _do_set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        options = self._session.options
        if not name:
            self._screen.note(
                "\n".join(f"{key} = {options[key]!r}" for key in sorted(options)) or "all by default"
            )
            self._screen.note(f"options: {', '.join(option_names())}")
            return
        if text.strip() == "default":
            options.pop(name, None)
        elif text.strip():
            options[name] = parse_option(name, text.strip(), any_name=self._connection.remote)
        self._keep()
        self._screen.note(f"{name} = {options[name]!r}" if name in options else f"{name} by default")
        if name in options and (problem := unknown(name)):
            self._screen.note(f"{problem} It is sent all the same, for the server to judge.")

    def _do_stats(self, _: str) -> None:
        if self._session.last is None:
            self._screen.note("no reply was written in this run yet")
            return
        self._screen.table(("", ""), numbers.rows(self._session.last, self._totals))

    def _do_save(self, rest: str) -> None:
        if rest:
            path = expanded(rest)
            self._session.save(path)
            self._screen.note(f"a copy is in {path}")
        elif self._file is None:
            self._screen.note("this chat is not kept (--session none); /save FILE saves a copy")
        else:
            self._keep()
            kept = self._file.path.exists()
            self._screen.note(f"kept in {self._file.path}" if kept else "nothing was said yet")

    def _do_load(self, rest: str) -> None:
        if not rest:
            chats = self._saved.listing(self._connection.llama)
            rows = [
                (
                    self._saved.name_of(chat.path),
                    f"{chat.saved_at:%Y-%m-%d %H:%M}",
                    str(chat.messages),
                    line(chat.begins),
                )
                for chat in chats
            ]
            self._screen.table(("name", "saved", "#messages", "begins with"), rows)
            return
        path = self._saved.find(rest)
        self._use(Session.load(path, self._connection.llama))
        if self._file is not None:
            self._file = ChatFile(path, self._saved)
        self.show_end()

    def _do_new(self, _: str) -> None:
        self._use(Session(self._connection.llama, self._session.system, **self._session.options))
        if self._file is not None:
            self._file = ChatFile(self._saved.fresh(), self._saved)
        self._screen.note("a new chat")

    def _do_help(self, _: str) -> None:
        self._screen.table(("command", ""), [(one.usage, one.help) for one in commands.COMMANDS])
        self._screen.table(("key", ""), commands.KEYS)

    def show_end(self) -> None:
        """Where the chat stands: how much there is, and its last two messages."""
        messages = self._session.messages
        self._screen.note(f"{len(messages)} messages" if messages else "the beginning")
        for number, message in list(enumerate(messages, 1))[-2:]:
            self._screen.message(number, _who(message["role"]), message["content"])


def _who(role: str) -> str:
    return "you" if role == "user" else "model"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SessionError(f"{text} is no number") from None
