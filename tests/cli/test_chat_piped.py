"""`onceread chat` and `onceread complete` in a pipe, on a server without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.chat_server import SHOUT, answer
from tests.server.fakes import FakeEngine, fake_app
from tests.server.live import serving
from typer.testing import CliRunner

from onceread.cli.errors import CommandError
from onceread.cli.main import app


class Piped:
    """The command line in this process, on a server."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.url = url
        self.engine = engine

    def run(self, command: str, *arguments: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(app, [command, "--url", self.url, *arguments], input=stdin)

    def out(self, command: str, *arguments: str, stdin: str | bytes = "") -> str:
        done = self.run(command, *arguments, stdin=stdin)
        assert done.exit_code == 0, done.exception
        return str(done.stdout)

    def complaint(self, command: str, *arguments: str, stdin: str = "") -> str:
        done = self.run(command, *arguments, stdin=stdin)
        assert isinstance(done.exception, CommandError), done.output
        assert "\n" not in str(done.exception)
        return str(done.exception)

    @property
    def asked(self) -> str:
        return bytes(t for t in self.engine.requests[-1].prompt if t < 256).decode()


@pytest.fixture(scope="module")
def server_url() -> Iterator[tuple[str, FakeEngine]]:
    engine = FakeEngine(answer)
    with serving(fake_app(engine)) as url:
        yield url, engine


@pytest.fixture
def piped(
    server_url: tuple[str, FakeEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Piped]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url, engine = server_url
    engine.handles.clear()
    return Piped(url, engine)


def test_each_line_is_a_message_of_one_chat(piped: Piped, tmp_path: Path) -> None:
    assert piped.out("chat", stdin="one\n\n/help\n") == "reply 1 to one\nreply 2 to /help\n"
    assert piped.asked == "user\none\nassistant\nreply 1 to one\nuser\n/help\nassistant\n"
    assert not (tmp_path / "state").exists()  # the next script begins anew


def test_with_once_all_of_it_is_one_message(piped: Piped) -> None:
    assert piped.out("chat", "--once", stdin="one\n\ntwo\n") == "reply 1 to one\n\ntwo\n"
    assert piped.out("chat", "--once", stdin=" \n") == ""


def test_a_session_goes_on_in_the_next_call(piped: Piped, tmp_path: Path) -> None:
    file = str(tmp_path / "chat.json")
    piped.out("chat", "--session", file, "--system", "Be brief.", "--temperature", "0.5", stdin="one\n")
    piped.out("chat", "--session", file, stdin="two\n")
    assert piped.asked == "system\nBe brief.\nuser\none\nassistant\nreply 1 to one\nuser\ntwo\nassistant\n"
    assert piped.engine.requests[-1].sampling.temperature == 0.5
    piped.out("chat", "--session", file, "--new", stdin="three\n")
    assert piped.asked == "user\nthree\nassistant\n"


def test_a_failed_reply_ends_it_with_one_line_and_keeps_what_was_before(piped: Piped, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    done = piped.run("chat", "--session", str(file), stdin="one\nbreak\ntwo\n")
    assert str(done.exception) == "the engine broke"
    assert done.stdout.startswith("reply 1 to one\n")
    assert [m["content"] for m in json.loads(file.read_text())["messages"]] == ["one", "reply 1 to one"]


def test_replies_hold_no_control_characters(piped: Piped) -> None:
    assert piped.out("chat", stdin="shout\n") == "reply 1 [31mred]0;title2Jback\n"


def test_bytes_that_are_no_text_become_replacement_characters(piped: Piped) -> None:
    assert piped.out("chat", stdin=b"a\xffb\n") == "reply 1 to a\ufffdb\n"


def test_complete_continues_raw_text(piped: Piped) -> None:
    assert piped.out("complete", "once", "upon", "--max-tokens", "7", "--seed", "3", "--stop", "x") == (
        "reply 1 to raw"
    )
    request = piped.engine.requests[0]
    assert bytes(request.prompt) == b"once upon"
    assert (request.max_tokens, request.stop, request.sampling.seed) == (7, ("x",), 3)


def test_complete_answers_a_message(piped: Piped) -> None:
    assert piped.out("complete", "--chat", "--system", "Be brief.", "hello") == "reply 1 to hello"
    assert piped.asked == "system\nBe brief.\nuser\nhello\nassistant\n"


def test_complete_reads_files_and_pipes(piped: Piped, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\n")
    assert piped.out("complete", "--chat", "--file", str(notes)) == "reply 1 to my notes\n"
    assert (
        piped.out("complete", "--chat", "Sum up:", "--file", str(notes)) == "reply 2 to Sum up:\n\nmy notes\n"
    )
    assert piped.out("complete", "--chat", stdin="from a pipe") == "reply 3 to from a pipe"
    assert piped.out("complete", "--chat", "Sum up:", "--file", "-", stdin="x") == "reply 4 to Sum up:\n\nx"


def test_complete_gives_json_with_text_usage_and_timings(piped: Piped) -> None:
    text = piped.out("complete", "--json", "--chat", "shout")
    found = json.loads(text)
    assert found["text"] == f"reply 1 {SHOUT}"
    assert (found["model"], found["finish_reason"]) == ("fake", "stop")
    assert found["usage"]["prompt_tokens_details"]["cached_tokens_by_source"]["memory"] == 3
    assert found["timings"]["prompt_n"] == 2
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in text)


def test_complete_takes_grammars_and_schemas_from_files(piped: Piped, tmp_path: Path) -> None:
    grammar, schema = tmp_path / "yes.gbnf", tmp_path / "schema.json"
    grammar.write_text('root ::= "yes"')
    schema.write_text('{"type": "object"}')
    piped.out("complete", "--grammar", str(grammar), "x")
    piped.out("complete", "--json-schema", str(schema), "--chat", "x")
    kinds = [request.sampling.constraint for request in piped.engine.requests]
    assert [(kind.kind, kind.text) for kind in kinds if kind] == [
        ("gbnf", 'root ::= "yes"'),
        ("json_schema", '{"type": "object"}'),
    ]


def test_an_option_that_is_not_known_is_sent_with_a_word(piped: Piped) -> None:
    done = piped.run("complete", "--set", "temprature=1", "--set", "min_p=0.2", "x")
    assert done.exit_code == 0
    assert "did you mean temperature?" in done.stderr
    assert "min_p" not in done.stderr
    assert piped.engine.requests[0].sampling.min_p == 0.2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("complete",), "the prompt is empty"),
        (("complete", "--file", "nowhere.txt"), "nowhere.txt can't be read: No such file"),
        (("complete", "--system", "x", "y"), "--system is for a message: give --chat"),
        (("complete", "--temperature", "hot", "x"), "temperature: must be a valid number"),
        (("complete", "--max-tokens", "-1", "x"), "max_tokens: "),
        (("complete", "--set", "stream=true", "x"), "there is no option 'stream'"),
        (("complete", "--set", "top_k", "x"), "write it as NAME=VALUE"),
        (("complete", "--grammar", "a", "--json-schema", "b", "x"), "exclude each other"),
        (("complete", "--ctx-size", "512", "x"), "--ctx-size is for a model in this process"),
        (("chat", "one", "--model", "two"), "two models: one and --model two"),
        (("chat", "--system", "a", "--persona", "b"), "--system and --persona"),
        (("chat", "--persona", "nowhere.txt"), "--persona: nowhere.txt can't be read"),
        (
            ("chat", "--session", "/nowhere/chat.json"),
            "chats can't be kept in /nowhere/chat.json: there is no folder",
        ),
        (("chat", "--set", "temperature=hot"), "temperature: must be a valid number"),
    ],
)
def test_mistakes_are_one_line(piped: Piped, arguments: tuple[str, ...], why: str) -> None:
    assert why in piped.complaint(*arguments)
    assert piped.engine.requests == []


def test_a_damaged_session_is_said_to_be_one_and_left_alone(piped: Piped, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text('{"format": "onceread-session"')
    assert f"{file} is not a session, or is damaged" in piped.complaint("chat", "--session", str(file))
    assert file.read_text() == '{"format": "onceread-session"'


def test_no_server_and_a_wrong_key_are_said(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["complete", "--url", "http://127.0.0.1:9", "x"])
    assert "no server answers at http://127.0.0.1:9" in str(done.exception)
    with serving(fake_app(api_keys=("ann=secret",))) as url:
        done = CliRunner().invoke(app, ["complete", "--url", url, "x"])
        assert "--api-key SECRET" in str(done.exception)
        monkeypatch.setenv("ONCEREAD_KEY", "secret")
        assert CliRunner().invoke(app, ["complete", "--url", url, "x"]).stdout == "héllo"


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_complete_with_what_was_written(piped: Piped) -> None:
    command: list[Any] = [
        sys.executable,
        "-m",
        "onceread",
        "complete",
        "--url",
        piped.url,
        "--chat",
        "forever",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read(10) == "word word "
        process.send_signal(2)
        assert process.stderr.read() == ""
        process.stdout.read()
        assert process.wait(10) == 130


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_stream_that_is_closed(server_url: tuple[str, FakeEngine], closed: str, tmp_path: Path) -> None:
    command = f"echo hello | {sys.executable} -m onceread chat --url {server_url[0]} {closed}"
    done = subprocess.run(
        command,
        shell=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_encoding_without_the_replys_characters(
    server_url: tuple[str, FakeEngine], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceread", "complete", "--url", server_url[0], "--chat", "é"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"to ?")


@pytest.mark.parametrize("name", ["self", "llama", "system"])
def test_options_that_are_arguments_of_ours(piped: Piped, tmp_path: Path, name: str) -> None:
    assert "there is no option" in piped.complaint("chat", "--set", f"{name}=5", stdin="hello\n")
    file = tmp_path / "s.json"
    piped.out("chat", "--session", str(file), stdin="hello\n")
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "options": {name: 5}}))
    assert "is damaged" in piped.complaint("chat", "--session", str(file), stdin="hello\n")


def test_half_a_character_in_a_file(piped: Piped, tmp_path: Path) -> None:
    file, card = tmp_path / "s.json", tmp_path / "p.json"
    card.write_text(json.dumps({"name": "A\ud800", "description": "b\ud800"}))
    piped.out("chat", "--session", str(file), "--persona", str(card), stdin="hello\n")
    file.write_text(file.read_text().replace('"hello"', r'"\ud800"'))
    assert "half a character" in piped.complaint("chat", "--session", str(file), stdin="hello\n")
