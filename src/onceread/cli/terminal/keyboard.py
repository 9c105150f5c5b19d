"""The terminal's input: messages of several lines, edited with the usual keys, remembered between runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

_CONTINUED = "… "


class Keyboard:
    """Asks for messages. Enter sends; Esc and Enter, or a backslash before Enter, begin another line."""

    def __init__(
        self,
        history: Path | None,
        words: Mapping[str, Sequence[str]],
        *,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's name
        output: Output | None = None,
    ) -> None:
        """``words`` are the commands, each with what Tab offers behind it. Raises OSError for the history."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            multiline=True,
            prompt_continuation=_CONTINUED,
            key_bindings=_keys(),
            completer=_Commands(words),
            complete_while_typing=False,
            input=input,
            output=output,
        )

    def ask(self, default: str = "", mark: str = "> ") -> str:
        """A message. Raises EOFError for Ctrl+D on an empty line, KeyboardInterrupt for Ctrl+C."""
        return self._session.prompt(FormattedText([("bold", mark)]), default=default)


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    path.touch(mode=0o600)  # before prompt_toolkit makes it, for everybody to read
    return FileHistory(path)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_state = None
        elif buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Commands(Completer):
    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._words = words

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        command, space, rest = text.partition(" ")
        offered = self._words.get(command, ()) if space else self._words
        begun = rest if space else command
        for word in offered:
            if word.startswith(begun) and word != begun:
                yield Completion(word, -len(begun))
