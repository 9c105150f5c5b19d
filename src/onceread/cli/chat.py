"""``onceread chat``: a conversation in the terminal, kept between runs."""

from __future__ import annotations

import errno
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceread.cli.errors import CommandError, one_line
from onceread.cli.terminal import model_options as options
from onceread.models.home import expanded

if TYPE_CHECKING:
    from onceread.cli.terminal.connection import Connection
    from onceread.cli.terminal.persona import Persona
    from onceread.cli.terminal.saved_chats import ChatFile, SavedChats
    from onceread.library.session import Session

_CHAT = "The chat"
_KEEP_NOTHING = "none"


def chat(
    context: typer.Context,
    model: Annotated[
        options.Text, typer.Argument(metavar="[MODEL]", help="GGUF file (default: the demo model)")
    ] = None,
    system: Annotated[
        options.Text,
        typer.Option("--system", metavar="TEXT", help="the system prompt", rich_help_panel=_CHAT),
    ] = None,
    persona: Annotated[
        options.File,
        typer.Option(
            "--persona",
            metavar="FILE",
            help="the same from a text file, or a character card (JSON)",
            rich_help_panel=_CHAT,
        ),
    ] = None,
    session: Annotated[
        options.Text,
        typer.Option(
            "--session",
            metavar="FILE|none",
            help="where the chat is kept; none keeps nothing",
            rich_help_panel=_CHAT,
        ),
    ] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="begin a chat, do not resume the last one", rich_help_panel=_CHAT),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="all of stdin is one message", rich_help_panel=_CHAT)
    ] = False,
    temperature: options.Temperature = None,
    max_tokens: options.MaxTokens = None,
    seed: options.Seed = None,
    set: options.Set = None,  # noqa: A002 - the option's name
    url: options.Url = None,
    api_key: options.ApiKey = None,
    model_option: options.ModelOption = None,
    chat_template: options.ChatTemplate = None,
    gpu_layers: options.GpuLayers = None,
    ctx_size: options.CtxSize = None,
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    threads_batch: options.ThreadsBatch = None,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    flash_attn: options.FlashAttn = None,
    overflow: options.Overflow = None,
    exact: options.Exact = None,
    cache_ram: options.CacheRam = None,
    cache_disk: options.CacheDisk = None,
    cache_dir: options.CacheDir = None,
    no_disk_cache: options.NoDiskCache = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Chat in the terminal, with a model or a running server. The last chat is resumed.

    With a pipe on stdin each line is a message, and only the replies are printed.
    """
    params = context.params
    who = _persona(persona, system)
    for stream in (sys.stdin, sys.stdout):
        if callable(reconfigure := getattr(stream, "reconfigure", None)):
            reconfigure(errors="replace")
    connection = options.connect(params, model)
    with closing(connection):
        reply = options.reply_options(params, any_name=connection.remote)
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not once
        if on_terminal:
            _interactive(connection, who, reply, params)
        else:
            _piped(connection, who, reply, params)


def _interactive(
    connection: Connection, who: Persona | None, reply: dict[str, Any], params: dict[str, Any]
) -> None:
    from onceread.cli.terminal.commands import COMMANDS
    from onceread.cli.terminal.conversation import Conversation
    from onceread.cli.terminal.generation import option_names
    from onceread.cli.terminal.keyboard import Keyboard
    from onceread.cli.terminal.saved_chats import SavedChats, state_folder
    from onceread.cli.terminal.screen import Screen

    screen = Screen()
    saved = SavedChats(connection.name, connection.identity)
    screen.say(f"{connection.name} · /help lists the commands, Ctrl+D ends", "bold")
    session, file = _opened(connection, saved, who, reply, params)
    words = {f"/{one.name}": option_names() if one.name == "set" else () for one in COMMANDS}
    history = None if file is None else state_folder() / "chat-history"
    try:
        if history is not None:
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        keyboard = Keyboard(history, words)
    except OSError as error:
        screen.error(f"what you say is not remembered: {error.strerror or error}")
        keyboard = Keyboard(None, words)
    conversation = Conversation(connection, session, screen, keyboard, saved, file)
    if session.messages:
        screen.note("resumed; /new begins another chat")
        conversation.show_end()
    elif who is not None:
        conversation.greet(who)
    conversation.run()


def _piped(
    connection: Connection, who: Persona | None, reply: dict[str, Any], params: dict[str, Any]
) -> None:
    from onceread.cli.terminal.piped import messages, run_piped
    from onceread.cli.terminal.saved_chats import SavedChats

    saved = SavedChats(connection.name, connection.identity)
    named = {
        **params,
        "session": params["session"] or _KEEP_NOTHING,
    }  # a script's chat does not go on by itself
    session, file = _opened(connection, saved, who, reply, named)
    if who is not None and who.greeting and not session.messages:
        session.append("assistant", who.greeting)

    def keep() -> None:
        if file is not None:
            file.save(session)

    try:
        run_piped(session, messages(sys.stdin, whole=params["once"]), keep)
    except KeyboardInterrupt:
        keep()
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise
    except connection.problems as error:
        raise CommandError(one_line(error)) from error


def _opened(
    connection: Connection,
    saved: SavedChats,
    who: Persona | None,
    reply: dict[str, Any],
    params: dict[str, Any],
) -> tuple[Session, ChatFile | None]:
    """The session to go on with, or a new one, and where it is kept. Raises CommandError."""
    from onceread.cli.terminal.saved_chats import ChatFile
    from onceread.library.session import Session
    from onceread.library.session_tree import SessionError

    named = params["session"]
    path = None
    try:
        if named is None:
            path = None if params["new"] else saved.latest()
        elif named != _KEEP_NOTHING:
            path = expanded(named)
            if not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}")
        if path is not None and path.exists() and not params["new"]:
            session = Session.load(path, connection.llama, **reply)
        else:
            session = Session(connection.llama, **reply)
        if who is not None:
            session.system = who.system
        if named == _KEEP_NOTHING:
            return session, None
        return session, ChatFile(path or saved.fresh(), saved)
    except SessionError as error:
        raise CommandError(f"{error}; --new begins another chat") from None
    except OSError as error:
        raise CommandError(
            f"chats can't be kept in {path or saved.folder}: {error.strerror or error}; "
            "--session FILE names another place, --session none keeps nothing"
        ) from None


def _persona(file: Path | None, system: str | None) -> Persona | None:
    from onceread.cli.terminal.persona import Persona, PersonaInvalid, read_persona

    if file is None:
        return None if system is None else Persona("", system, "")
    if system is not None:
        raise CommandError("--system and --persona both say who the model is: give one")
    try:
        return read_persona(file)
    except PersonaInvalid as error:
        raise CommandError(f"--persona: {error}") from None
