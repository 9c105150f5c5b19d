"""A session over anything that chats: what each step asks for, and what is left when one fails."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceread.library.session import Session
from onceread.library.session_tree import SessionError


class Scripted:
    """Chats by a script: numbers its replies, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.options: list[dict[str, Any]] = []
        self.fails_after: int | None = None
        self.error: BaseException = OSError("the line is dead")
        self.closed = 0
        self.calls_tool = False

    def create_chat_completion(
        self, messages: Any, *, stream: bool = False, **options: Any
    ) -> Iterator[dict[str, Any]]:
        assert stream
        self.asked.append(messages)
        self.options.append(options)
        return self._chunks(len(self.asked))

    def _chunks(self, number: int) -> Iterator[dict[str, Any]]:
        pieces = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]
        pieces += [{"content": word} for word in ("reply ", str(number))]
        if self.calls_tool:
            pieces.append({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]})
        try:
            for count, delta in enumerate(pieces):
                if count == self.fails_after:
                    raise self.error
                yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            sources = {"context": 6, "memory": 0, "disk": 1, "shared": 0, "moved": 0}
            details = {"cached_tokens": 7, "cached_tokens_by_source": sources}
            usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": details}
            yield {"choices": [], "usage": usage, "timings": {"prompt_n": 2, "predicted_per_second": 50.0}}
        finally:
            self.closed += 1


@pytest.fixture
def llama() -> Scripted:
    return Scripted()


@pytest.fixture
def session(llama: Scripted) -> Session:
    return Session(llama, "be kind", temperature=0)


def texts(session: Session) -> list[str]:
    return [message["content"] for message in session.messages]


def test_a_message_is_asked_with_everything_before_it(session: Session, llama: Scripted) -> None:
    assert session.send("one") == "reply 1"
    assert list(session.stream("two", seed=3)) == ["reply ", "2"]
    assert [message["role"] for message in llama.asked[1]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in llama.asked[1]] == ["be kind", "one", "reply 1", "two"]
    assert llama.options == [{"temperature": 0}, {"temperature": 0, "seed": 3}]
    assert texts(session) == ["one", "reply 1", "two", "reply 2"]


def test_last_tells_what_the_reply_cost(session: Session) -> None:
    heard: list[str] = []
    session.on_reasoning = heard.append
    session.send("one")
    last = session.last
    assert last is not None
    assert (last.text, last.reasoning, last.finish_reason) == ("reply 1", "hm", "stop")
    assert (last.prompt_tokens, last.evaluated, last.cached_tokens, last.completion_tokens) == (9, 2, 7, 2)
    assert last.cached_by_source is not None
    assert last.cached_by_source["disk"] == 1
    assert last.tokens_per_second == 50.0
    assert last.first_token_seconds is not None
    assert 0 <= last.first_token_seconds <= last.seconds
    assert heard == ["hm"]


def test_regenerate_asks_the_same_again_and_keeps_the_old_reply(session: Session, llama: Scripted) -> None:
    session.send("one")
    assert session.regenerate() == "reply 2"
    assert llama.asked[0] == llama.asked[1]
    assert texts(session) == ["one", "reply 2"]
    assert [(b.messages, b.text, b.current) for b in session.branches] == [
        (2, "reply 1", False),
        (2, "reply 2", True),
    ]
    session.switch(session.branches[0])
    assert texts(session) == ["one", "reply 1"]


def test_editing_what_the_user_said_drops_what_follows_and_answers_anew(
    session: Session, llama: Scripted
) -> None:
    session.send("one")
    session.send("two")
    assert session.edit(0, "uno") == "reply 3"
    assert [message["content"] for message in llama.asked[2]] == ["be kind", "uno"]
    assert texts(session) == ["uno", "reply 3"]
    session.switch(session.branches[0].id)
    assert texts(session) == ["one", "reply 1", "two", "reply 2"]
    assert session.edit(-2, "due") == "reply 4"
    assert texts(session) == ["one", "reply 1", "due", "reply 4"]


def test_editing_a_reply_keeps_it_as_given(session: Session, llama: Scripted) -> None:
    session.send("one")
    session.send("two")
    assert session.edit(1, "mine") == "mine"
    assert texts(session) == ["one", "mine"]
    assert len(llama.asked) == 2
    session.send("three")
    assert [message["content"] for message in llama.asked[2]] == ["be kind", "one", "mine", "three"]


def test_undo_takes_the_last_message_back_and_leaves_it_a_branch(session: Session) -> None:
    session.send("one")
    session.send("two")
    assert session.undo() == "two"
    assert texts(session) == ["one", "reply 1"]
    assert session.undo() == "one"
    assert texts(session) == []
    assert [(b.messages, b.current) for b in session.branches] == [(0, True), (4, False)]
    with pytest.raises(SessionError, match="no message"):
        session.undo()
    session.switch(session.branches[1])
    assert texts(session)[-1] == "reply 2"


def test_a_fork_goes_its_own_way(session: Session) -> None:
    session.send("one")
    twin = session.fork()
    twin.send("two")
    twin.options["temperature"] = 1
    assert texts(session) == ["one", "reply 1"]
    assert texts(twin) == ["one", "reply 1", "two", "reply 2"]
    assert session.options == {"temperature": 0}


def test_a_greeting_stands_before_what_the_user_says(session: Session, llama: Scripted) -> None:
    session.append("assistant", "Welcome!")
    session.send("one")
    assert [message["role"] for message in llama.asked[0]] == ["system", "assistant", "user"]
    with pytest.raises(SessionError, match="user's or the assistant's"):
        session.append("system", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [0, 2, 3], ids=["before anything", "before any text", "in the middle"])
@pytest.mark.parametrize("step", ["send", "regenerate", "edit"])
def test_a_failed_reply_leaves_the_session_as_it_was(
    session: Session, llama: Scripted, after: int, step: str
) -> None:
    session.send("one")
    before, branches, last = session.messages, session.branches, session.last
    llama.fails_after = after
    with pytest.raises(OSError, match="the line is dead"):
        {
            "send": lambda: session.send("two"),
            "regenerate": session.regenerate,
            "edit": lambda: session.edit(0, "uno"),
        }[step]()
    assert (session.messages, session.branches, session.last) == (before, branches, last)
    llama.fails_after = None
    session.send("two")
    assert texts(session)[:3] == ["one", "reply 1", "two"]


def test_a_reply_that_is_stopped_keeps_what_came_marked(session: Session, llama: Scripted) -> None:
    llama.error, llama.fails_after = KeyboardInterrupt(), 3
    with pytest.raises(KeyboardInterrupt):
        session.send("one")
    assert session.messages[-1] == {"role": "assistant", "content": "reply ", "partial": True}
    assert session.last is not None
    assert (session.last.finish_reason, session.last.evaluated) == ("interrupted", None)
    llama.fails_after = None
    session.send("two")
    assert llama.asked[1][-2] == {"role": "assistant", "content": "reply "}  # the mark is not sent


def test_a_stopped_reply_has_the_prompts_numbers_where_its_stream_knows_them() -> None:
    details = {"cached_tokens": 7, "cached_tokens_by_source": {"context": 7}}

    class Stream(Iterator[dict[str, Any]]):
        prompt_usage = {"prompt_tokens": 9, "prompt_tokens_details": details}  # noqa: RUF012

        def __next__(self) -> dict[str, Any]:
            return {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}

    class Knows:
        def create_chat_completion(self, messages: Any, *, stream: Any = True, **options: Any) -> Stream:
            return Stream()

    session = Session(Knows())
    pieces = session.stream("one")
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert session.last is not None
    assert (session.last.prompt_tokens, session.last.evaluated, session.last.cached_tokens) == (9, 2, 7)
    assert session.last.completion_tokens is None


def test_closing_the_iterator_stops_the_reply(session: Session, llama: Scripted) -> None:
    pieces = session.stream("one")
    assert next(pieces) == "reply "
    assert llama.closed == 0
    pieces.close()  # type: ignore[attr-defined]
    assert llama.closed == 1
    assert texts(session) == ["one", "reply "]


def test_stopping_before_any_text_changes_nothing(session: Session, llama: Scripted) -> None:
    llama.error, llama.fails_after = KeyboardInterrupt(), 2
    with pytest.raises(KeyboardInterrupt):
        session.send("one")
    assert session.messages == []
    assert session.last is None


def test_one_reply_is_written_at_a_time(session: Session) -> None:
    pieces = session.stream("one")
    next(pieces)
    for step in (lambda: session.send("two"), session.fork, session.undo, lambda: session.switch(0)):
        with pytest.raises(SessionError, match="is being written"):
            step()
    assert list(pieces) == ["1"]
    session.send("two")


def test_nothing_happens_before_the_first_piece_is_asked_for(session: Session, llama: Scripted) -> None:
    session.stream("one")
    session.send("two")
    assert texts(session) == ["two", "reply 1"]
    assert len(llama.asked) == 1


def test_a_reply_that_calls_a_tool_is_refused_and_changes_nothing(session: Session, llama: Scripted) -> None:
    llama.calls_tool = True
    with pytest.raises(SessionError, match="create_chat_completion"):
        session.send("one", tools=[{"type": "function", "function": {"name": "f"}}])
    assert "tools" in llama.options[0]  # they are passed on
    assert session.messages == []


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda s: s.regenerate(), "nothing|no message"),
        (lambda s: s.edit(0, "x"), "no message 0"),
        (lambda s: s.switch(7), "no branch 7"),
        (lambda s: s.send("x", stream=True), "stream is set by the session"),
        (lambda s: s.send("x", messages=[]), "messages is set by the session"),
        (lambda s: s.send("x", n=2), "n: a session takes one reply"),
        (lambda s: s.send(5), "a message is text, not int"),
        (lambda s: s.send("\ud800"), "half a character"),
    ],
    ids=[
        "no reply yet",
        "no message",
        "no branch",
        "stream",
        "messages",
        "two replies",
        "number",
        "surrogate",
    ],
)
def test_what_makes_no_sense_is_said(session: Session, llama: Scripted, step: Any, why: str) -> None:
    with pytest.raises(SessionError, match=why):
        step(session)
    assert llama.asked == []


def test_a_saved_session_comes_back_with_all_branches(
    session: Session, llama: Scripted, tmp_path: Path
) -> None:
    session.send("one ✓")
    session.regenerate()
    llama.error, llama.fails_after = KeyboardInterrupt(), 3
    with pytest.raises(KeyboardInterrupt):
        session.send("two")
    file = tmp_path / "chat.json"
    session.save(file)
    back = Session.load(file, llama, seed=1)
    assert back.messages == session.messages
    assert back.branches == session.branches
    assert (back.system, back.options) == ("be kind", {"temperature": 0, "seed": 1})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_save_that_fails_leaves_the_old_file(session: Session, tmp_path: Path) -> None:
    session.send("one")
    file = tmp_path / "chat.json"
    session.save(file)
    whole = file.read_bytes()
    session.options["logits_processor"] = print
    with pytest.raises(SessionError, match="logits_processor can't be saved"):
        session.save(file)
    assert file.read_bytes() == whole
    del session.options["logits_processor"]
    with pytest.raises(OSError, match="No such file"):
        session.save(tmp_path / "nowhere" / "chat.json")
    assert list(tmp_path.iterdir()) == [file]


GOOD: dict[str, Any] = {
    "format": "onceread-session",
    "version": 1,
    "system": None,
    "options": {},
    "head": 2,
    "messages": [
        {"id": 1, "parent": None, "role": "user", "content": "one"},
        {"id": 2, "parent": 1, "role": "assistant", "content": "two"},
    ],
}


def damaged(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        (json.dumps(GOOD)[:-30], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"hello"', "not a session"),
        ('{"spec": "chara_card_v2"}', "not a session"),
        (damaged(version=2), "version 2"),
        (damaged(head=9), "no message 9"),
        (damaged(head="2"), "head"),
        (
            damaged(messages=[{"id": 1, "parent": 1, "role": "user", "content": "x"}]),
            "message 1 stands twice",
        ),
        (damaged(messages=GOOD["messages"][1:]), "message 2 stands twice, or before"),
        (damaged(messages=GOOD["messages"] * 2), "message 1 stands twice"),
        (damaged(messages=[{"id": 1, "parent": None, "role": "system", "content": "x"}]), "role"),
        (damaged(messages=[{"id": 1, "parent": None, "role": "user"}]), "content"),
    ],
    ids=[
        "empty",
        "cut short",
        "nested without end",
        "other JSON",
        "another program's",
        "a newer one",
        "head nowhere",
        "head no number",
        "its own parent",
        "parent missing",
        "twice the same",
        "unknown role",
        "no content",
    ],
)
def test_a_damaged_or_foreign_file_is_said_to_be_one(content: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(content)
    with pytest.raises(SessionError, match=why) as caught:
        Session.load(file, Scripted())
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_damage_is_read(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(GOOD))
    assert texts(Session.load(file, Scripted())) == ["one", "two"]


def test_bytes_that_are_no_text_are_no_session(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(SessionError, match="not JSON"):
        Session.load(file, Scripted())
    with pytest.raises(FileNotFoundError):
        Session.load(tmp_path / "none.json", Scripted())
