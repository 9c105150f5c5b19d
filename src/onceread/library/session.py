"""A conversation that keeps itself: send, edit, regenerate, undo and fork, each at the cost of what is new."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from onceread.library.reply import Reply, ReplyGatherer
from onceread.library.session_file import Stored, read_session, write_session
from onceread.library.session_tree import Branch, MessageTree, Node, Role, SessionError

_OURS = ("messages", "stream", "stream_options")  # options that a session sets itself


class Chats(Protocol):
    """What a session talks to: a `Llama`, a `RemoteLlama`, or anything that chats as they do."""

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Any = ..., **options: Any
    ) -> Any:
        """OpenAI's chunks, if ``stream`` is true."""
        ...


class Session:
    """A conversation as a tree of messages.

    Nothing is thrown away: what `edit`, `regenerate` and `undo` leave stays a branch, to come back to by
    `switch`. The prompt's state is the model's business, so each step costs the tokens that are new to it.

    The reply is asked for with ``options`` (those of ``create_chat_completion``), and those of the call go
    before. Tools may be among them, but a reply that calls one is an error here: a session holds text.

    One reply is written at a time; a second call meanwhile is a SessionError.
    """

    def __init__(self, llama: Chats, system: str | None = None, **options: Any) -> None:
        """Raises SessionError for options that a session sets itself."""
        self._llama = llama
        self._tree = MessageTree()
        self._lock = threading.Lock()
        self._check(options)
        self.system = system
        """The system prompt. It stands before all branches, is not among `messages`, and may be changed."""
        self.options: dict[str, Any] = dict(options)
        self.last: Reply | None = None
        """The last reply's numbers."""
        self.on_reasoning: Callable[[str], None] | None = None
        """Is called with pieces of what the model thinks. It is no part of the messages."""

    # -- what there is -----------------------------------------------------

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The current branch, without the system prompt; ``partial: True`` is on a reply that was stopped."""
        return [_shown(node) for node in self._tree.path()]

    @property
    def branches(self) -> list[Branch]:
        """All ends of the tree, the oldest first; one is ``current``."""
        return self._tree.branches()

    # -- replies -----------------------------------------------------------

    def send(self, text: str, **options: Any) -> str:
        """Say something; the reply's text. If that fails, the session is as it was before."""
        return "".join(self.stream(text, **options))

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Say something; the reply in pieces.

        Nothing happens before the first piece is asked for. Whoever stops in the middle (closes the iterator,
        breaks off the loop, Ctrl-C) keeps what came until then, marked ``partial``; if nothing came, or the
        reply failed, the session is as it was before.
        """
        self._check(options)
        _check_text(text)
        return self._write(lambda: (self._tree.head, text), options)

    def regenerate(self, **options: Any) -> str:
        """The last reply once more; the text. The old one stays a branch.

        With a fixed ``seed`` it may well be the same: give another.
        """
        return "".join(self.stream_regenerate(**options))

    def stream_regenerate(self, **options: Any) -> Iterator[str]:
        """As `regenerate`, in pieces like `stream`. Raises SessionError if there is nothing to answer."""
        self._check(options)
        self._answered()
        return self._write(lambda: (self._answered(), None), options)

    def edit(self, index: int, text: str, **options: Any) -> str:
        """Put other words into message ``index`` of `messages` (negative: from the end); what follows it goes.

        If it is the user's, the new reply is written and returned; an assistant's is kept as given, and is
        what is returned. The old ones stay a branch. Raises SessionError if there is no such message.
        """
        return "".join(self.stream_edit(index, text, **options))

    def stream_edit(self, index: int, text: str, **options: Any) -> Iterator[str]:
        """As `edit`, in pieces like `stream`."""
        self._check(options)
        _check_text(text)
        node = self._at(index)
        if node.role == "user":
            return self._write(lambda: (node.parent, text), options)
        return self._put(node, text)

    # -- moves, which cost nothing -----------------------------------------

    def append(self, role: Role, text: str) -> None:
        """Add a message as it is, without a reply: a greeting, or a conversation from elsewhere."""
        if role not in ("user", "assistant"):
            raise SessionError(f"a message is the user's or the assistant's, not {role!r}'s")
        _check_text(text)
        with self._alone():
            self._tree.add(self._tree.head, role, text)

    def undo(self) -> str:
        """Take the user's last message back, and what follows it; its text. It stays a branch.

        Raises SessionError if there is none.
        """
        with self._alone():
            for node in reversed(self._tree.path()):
                if node.role == "user":
                    self._tree.head = node.parent
                    return node.content
        raise SessionError("there is no message of the user's to take back")

    def switch(self, branch: Branch | int) -> None:
        """Stand at the end of another branch, given as it is in `branches` or by its id."""
        with self._alone():
            self._tree.move(branch if isinstance(branch, int) else branch.id)

    def fork(self) -> Session:
        """A session of its own that goes on from here, with all branches. Nothing is read for it."""
        with self._alone():
            twin = Session(self._llama, self.system, **self.options)
            twin._tree = self._tree.copy()
            twin.last = self.last
            return twin

    # -- files -------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all branches, the system prompt and the options to a JSON file, whole or not at all.

        Raises OSError, and SessionError for options that are not JSON.
        """
        with self._alone():
            write_session(Path(path), Stored(self._tree.copy(), self.system, dict(self.options)))

    @classmethod
    def load(cls, path: str | os.PathLike[str], llama: Chats, **options: Any) -> Session:
        """A saved session, on the same model or another; ``options`` go before the saved ones.

        Raises OSError, and SessionError for a file that is damaged, or no session.
        """
        stored = read_session(Path(path))
        session = cls(llama, stored.system, **{**stored.options, **options})
        session._tree = stored.tree
        return session

    # -- inside ------------------------------------------------------------

    def _write(
        self, ask: Callable[[], tuple[int | None, str | None]], options: Mapping[str, Any]
    ) -> Iterator[str]:
        """Get a reply to ``ask``: after which message, and what the user says there, if anything new."""
        with self._alone():
            parent, text = ask()
            path = [] if parent is None else self._tree.path(parent)
            messages = [{"role": node.role, "content": node.content} for node in path]
            if text is not None:
                messages.append({"role": "user", "content": text})
            if self.system:
                messages.insert(0, {"role": "system", "content": self.system})
            gathered = ReplyGatherer()
            try:
                yield from self._pieces(messages, {**self.options, **options}, gathered)
            except (KeyboardInterrupt, GeneratorExit):
                if gathered.text:
                    self._keep(parent, text, gathered, interrupted=True)
                raise
            self._keep(parent, text, gathered)

    def _pieces(
        self, messages: list[dict[str, Any]], options: Mapping[str, Any], gathered: ReplyGatherer
    ) -> Iterator[str]:
        chunks: Iterable[Mapping[str, Any]] = self._llama.create_chat_completion(
            messages, stream=True, **options
        )
        with contextlib.ExitStack() as stack:
            if callable(close := getattr(chunks, "close", None)):
                stack.callback(close)  # stops the reply, if it is not over
            try:
                for chunk in chunks:
                    piece, thought = gathered.take(chunk)
                    if thought and self.on_reasoning is not None:
                        self.on_reasoning(thought)
                    if piece:
                        yield piece
            finally:
                gathered.take_prompt_usage(getattr(chunks, "prompt_usage", None))

    def _keep(
        self, parent: int | None, text: str | None, gathered: ReplyGatherer, *, interrupted: bool = False
    ) -> None:
        if text is not None:
            parent = self._tree.add(parent, "user", text).id
        self._tree.add(parent, "assistant", gathered.text, partial=interrupted)
        self.last = gathered.reply(interrupted=interrupted)

    def _put(self, node: Node, text: str) -> Iterator[str]:
        with self._alone():
            self._tree.add(node.parent, node.role, text)
        yield text

    def _answered(self) -> int:
        """The message that the last reply answers. Raises SessionError if there is none."""
        path = self._tree.path()
        if path and path[-1].role == "assistant":
            path.pop()
        if not path or path[-1].role != "user":
            raise SessionError("there is no message of the user's to answer")
        return path[-1].id

    def _at(self, index: int) -> Node:
        path = self._tree.path()
        if not -len(path) <= index < len(path):
            raise SessionError(f"there is no message {index}: the conversation has {len(path)}")
        return path[index]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise SessionError("a reply is being written: wait for its end, or close its iterator")
        try:
            yield
        finally:
            self._lock.release()

    @staticmethod
    def _check(options: Mapping[str, Any]) -> None:
        for name in _OURS:
            if name in options:
                raise SessionError(f"{name} is set by the session itself: leave it out")
        if options.get("n") not in (None, 1):
            raise SessionError("n: a session takes one reply; regenerate() writes another one")


def _shown(node: Node) -> dict[str, Any]:
    message: dict[str, Any] = {"role": node.role, "content": node.content}
    return {**message, "partial": True} if node.partial else message


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise SessionError(f"a message is text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SessionError("the message holds half a character (a lone surrogate)") from None
