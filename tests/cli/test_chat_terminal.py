"""`onceread chat` on a pseudo-terminal, through every command, on a server without a model."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.chat_server import answer
from tests.server.fakes import FakeEngine, fake_app
from tests.server.live import serving

from onceread.cli.terminal.commands import COMMANDS

pexpect = pytest.importorskip("pexpect")
if os.name != "posix":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from tests.cli.chat_terminal import READY, ChatTerminal, plain  # noqa: E402


class Server:
    """A fake server's address, and what it was asked."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.url = url
        self.engine = engine

    @property
    def asked(self) -> str:
        """The last prompt."""
        request = self.engine.requests[-1]
        return bytes(t for t in request.prompt if t < 256).decode()


@pytest.fixture
def server() -> Iterator[Server]:
    engine = FakeEngine(answer)
    with serving(fake_app(engine)) as url:
        yield Server(url, engine)


def saved(state: Path) -> list[Path]:
    return sorted(state.glob("onceread/chats/*/*.json"))


def test_every_command(server: Server, tmp_path: Path) -> None:
    state, card, copy = tmp_path / "state", tmp_path / "card.json", tmp_path / "copy.json"
    card.write_text(
        json.dumps({"name": "Ada", "description": "{{char}} counts.", "first_mes": "I am {{char}}."})
    )
    used = set()

    with ChatTerminal("--url", server.url, "--system", "Be brief.", state=state) as chat:

        def do(command: str) -> str:
            used.add(command.split()[0].removeprefix("/"))
            return chat.say(command)

        assert "/help" in chat.ready()
        assert "no reply was written" in do("/stats")
        shown = chat.say("hello")
        assert "reply 1 to hello" in shown
        assert re.search(r"read 2 of \d+ tokens · first token after [\d.]+ s", shown)
        assert server.asked == "system\nBe brief.\nuser\nhello\nassistant\n"
        stats = do("/stats")
        assert re.search(r"read +2 tokens", stats)
        assert re.search(r"reused +\d+ tokens \(context \d+, memory 3\)", stats)
        assert re.search(r"first token +after", stats)

        assert "reply 2 to hello" in do("/regen")
        chat.say("second")
        shown = do("/messages")
        for line in ("system: Be brief.", "1 you: hello", "2 model: reply 2 to hello", "3 you: second"):
            assert line in shown

        used.add("edit")
        chat.type("/edit 1\r")
        chat.ready()
        assert "reply 4 to hello there" in chat.say(" there")
        chat.type("/edit 2\r")
        chat.ready()
        assert "message 2 is changed" in chat.say(", changed")
        assert "2 model: reply 4 to hello there, changed" in do("/messages")
        chat.type("/edit\r")
        chat.ready()
        chat.type("\x03")
        assert "left as it was" in chat.ready()
        assert "there is no message 9" in chat.say("/edit 9")

        shown = do("/branches")
        assert len(re.findall(r"reply \d to", shown)) == 4
        assert re.search(r"\* +\d+ +2 +reply 4 to hello there, changed", shown)
        assert "reply 1 to hello" in do("/switch 2")
        assert "there is no branch 99" in do("/switch 99")
        assert "which one?" in do("/switch")

        assert "taken back" in do("/undo")
        chat.type("\x15")  # the message is offered again: delete it
        assert "nothing was said yet" in do("/messages")
        assert "reply 1 to hello" in do("/switch 2")

        (first,) = saved(state)
        assert "goes back" in do("/fork")
        assert len(saved(state)) == 2
        chat.say("only in the fork")
        assert "only in the fork" not in first.read_text()
        shown = do("/load")
        assert first.stem in shown
        assert "reply 1 to hello" in do(f"/load {first.stem}")
        assert "only in the fork" not in do("/messages")

        assert "system: Be brief." in do("/system")
        assert "system: Be long." in do("/system Be long.")
        assert "no system prompt" in do("/system none")
        chat.say("naked")
        assert "system" not in server.asked

        assert "temperature = 0.7" in do("/set temperature 0.7")
        chat.say("warm")
        assert server.engine.requests[-1].sampling.temperature == 0.7
        assert "must be a valid number" in do("/set temperature hot")
        assert "did you mean temperature?" in do("/set temprature 1")
        do("/set temprature default")
        assert "temperature = 0.7" in do("/set")
        assert "temperature by default" in do("/set temperature default")
        assert json.loads(first.read_text())["options"] == {}

        assert str(copy) in do(f"/save {copy}")
        assert copy.exists()
        assert str(first) in do("/save").replace("\r\n", "")
        assert "its greeting is for a chat's beginning" in do(f"/persona {card}")
        assert "a new chat" in do("/new")
        assert "I am Ada." in do(f"/persona {card}")
        chat.say("who?")
        assert server.asked.startswith(
            "system\nYou are Ada.\n\nAda counts.\nassistant\nI am Ada.\nuser\nwho?"
        )
        assert "can't be read" in do(f"/persona {tmp_path / 'none.txt'}")

        shown = do("/help")
        for command in COMMANDS:
            assert command.usage in shown
        assert "there is no command /bogus" in chat.say("/bogus")
        assert "reply" in chat.say("//slash")
        assert server.asked.endswith("user\n/slash\nassistant\n")
        used.add("quit")
        chat.type("/quit\r")
        chat.end()
    assert used == {command.name for command in COMMANDS}


def test_ctrl_c_stops_the_reply_and_keeps_what_was_written(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        chat.ready()
        chat.type("go on forever\r")
        chat.see("word word")
        chat.type("\x03")
        assert "it was stopped" in chat.ready()
        assert "2 model (stopped): word word" in chat.say("/messages")
        assert "reply 2 to and then" in chat.say("and then")
        assert "word word \n" in server.asked
        chat.type("\x03")  # at the prompt it ends nothing
        assert "Ctrl+D" in chat.ready()
        chat.type("\x04")
        chat.end()
    assert server.engine.handles[0].cancelled
    (file,) = saved(tmp_path)
    assert [m["partial"] for m in json.loads(file.read_text())["messages"]] == [False, True, False, False]


def test_a_failed_reply_leaves_the_chat_and_offers_the_message_again(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        chat.ready()
        assert "no reply: the engine broke" in chat.say("break this")
        assert saved(tmp_path) == []
        chat.type("\x7f" * len("break this"))  # deleting it shows that it was there
        chat.say("mend it")
        assert server.asked == "user\nmend it\nassistant\n"


def test_a_message_can_have_several_lines(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        chat.ready()
        chat.say("one\\\rtwo\x1b\rthree")
        assert server.asked == "user\none\ntwo\nthree\nassistant\n"
        chat.say("\x1b[200~four\nfive\x1b[201~")  # pasted
        assert "user\nfour\nfive\nassistant" in server.asked


def test_the_last_chat_is_resumed_and_its_messages_remembered(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        chat.ready()
        chat.say("remember me")
        chat.type("\x04")
        chat.end()
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        shown = chat.ready()
        assert "resumed" in shown
        assert "reply 1 to remember me" in shown
        chat.say("\x1b[A")  # the last message again
        assert server.asked.endswith("user\nremember me\nassistant\n")
        assert server.asked.startswith("user\nremember me\nassistant\nreply 1")
    with ChatTerminal("--url", server.url, "--new", state=tmp_path) as chat:
        assert "resumed" not in chat.ready()
    (file,) = saved(tmp_path)
    for path, mode in ((file, 0o600), (file.parent, 0o700), (tmp_path / "onceread" / "chat-history", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_without_a_session_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, "--session", "none", state=tmp_path) as chat:
        chat.ready()
        chat.say("a secret")
        assert "not kept" in chat.say("/save")
        assert "nothing is kept" in chat.say("/fork")
        chat.type("\x04")
        chat.end()
    assert list(tmp_path.rglob("*")) == []


def test_two_terminals_on_one_chat_do_not_undo_each_other(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    arguments = ("--url", server.url, "--session", str(file))
    with ChatTerminal(*arguments, state=tmp_path) as one, ChatTerminal(*arguments, state=tmp_path) as two:
        one.ready()
        two.ready()
        one.say("from one")
        assert "changed elsewhere" in two.say("from two")
    assert "from one" in file.read_text()
    (other,) = saved(tmp_path)
    assert "from two" in other.read_text()


def test_a_model_can_not_send_escape_sequences(server: Server, tmp_path: Path) -> None:
    with ChatTerminal("--url", server.url, state=tmp_path) as chat:
        chat.ready()
        for line in ("shout", "/messages", "/branches", "/load"):
            chat.type(line + "\r")
            chat.child.expect_exact(READY)
            raw = chat.child.before or ""
            for sequence in ("\x1b[31m", "\x1b]0;", "\x07", "\x9b", "\x08b"):
                assert sequence not in raw, (line, sequence)
            if line == "shout":
                assert "reply 1 [31mred]0;title2Jback" in plain(raw)
