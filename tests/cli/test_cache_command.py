"""`onceread cache` on a directory and on a running server."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from tests.cli.cached import BUDGET, SYSTEM, fill
from tests.server.cached import TOKEN_BYTES, CachedEngine
from tests.server.fakes import FakeEngine, fake_app
from tests.server.live import serving
from typer.testing import CliRunner

from onceread.cli.cache_tables import ago, clean, show_overview, show_paths
from onceread.cli.errors import CommandError
from onceread.cli.main import app
from onceread.server.cache_schemas import Overview, PathList
from onceread.server.responses_store import ResponseMissing, ResponseStore, Turn


def run(*arguments: str, fails: int = 0) -> str:
    """What a command prints on stdout."""
    done = CliRunner().invoke(app, ["cache", *arguments])
    assert done.exit_code == fails, (done.output, done.exception)
    return done.stdout


def complaint(*arguments: str) -> str:
    """The one line that a command ends with."""
    done = CliRunner().invoke(app, ["cache", *arguments])
    assert isinstance(done.exception, CommandError), (done.output, done.exception)
    return str(done.exception)


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two models; three paths of the one, in two namespaces, and one path of the other."""
    folder = tmp_path / "cache"
    fill(folder, "Who was first?", "And who\x1b[2J\nlast?")
    fill(folder, "A secret?", namespace="salted")
    fill(folder, "Who was first?", model="another q8_0/q8_0")
    return folder


@pytest.fixture
def at(directory: Path) -> tuple[str, str]:
    return ("--cache-dir", str(directory))


class TestDirectory:
    def test_ls_piped_is_a_line_a_path_with_tabs(self, at: tuple[str, str]) -> None:
        found = rows(run("ls", *at))
        assert len(found) == 4
        first = next(row for row in found if row[10] == "Who was first?")
        path_id, tokens, own, tiers, in_memory, on_disk, used, hits, pins, model, text = first
        assert re.fullmatch("[0-9a-f]{12}", path_id)
        assert int(tokens) == len(SYSTEM) + int(own)
        assert (tiers, in_memory, pins) == ("disk", "0", "")
        assert int(on_disk) >= 50_000
        assert used.endswith("Z")
        assert hits == "1"
        assert {row[9] for row in found} == {"one f16/f16", "another q8_0/q8_0"}
        assert (model, text) == ("one f16/f16", "Who was first?")
        assert "And who [2J last?" in [row[10] for row in found]

    def test_ls_in_pages(self, at: tuple[str, str]) -> None:
        every = rows(run("ls", *at))
        assert rows(run("ls", "--limit", "1", *at)) == every[:1]
        assert rows(run("ls", "--limit", "1", "--all", *at)) == every
        page = json.loads(run("ls", "--limit", "2", "--json", *at))
        assert (len(page["paths"]), page["total"]) == (2, 4)
        assert rows(run("ls", "--after", page["next"], *at)) == every[2:]

    def test_stats(self, at: tuple[str, str], directory: Path) -> None:
        use = json.loads(run("stats", "--json", *at))
        assert (use["directory"], use["budget_bytes"], use["chunks"]) == (str(directory), BUDGET, 7)
        assert use["bytes"] == sum(model["bytes"] for model in use["models"])
        assert [model["chunks"] for model in use["models"]] == [2, 5]
        assert dict(rows(run("stats", *at))[:6])["chunks"] == "7"

    def test_pin_list_and_unpin(self, at: tuple[str, str]) -> None:
        path_id = rows(run("ls", *at))[0][0]
        assert "as my pin, id " in run("pin", path_id[:6], "--name", "my pin", *at)
        ((pin_id, name, tokens, size, _),) = rows(run("pins", *at))
        assert (name, int(tokens) > len(SYSTEM), int(size) > 150_000) == ("my pin", True, True)
        assert [row[8] for row in rows(run("ls", *at))].count("my pin") == 1
        assert json.loads(run("stats", "--json", *at))["pinned_bytes"] == int(size)
        assert run("unpin", pin_id[:6], *at) == f"Unpinned {pin_id[:6]}.\n"
        assert run("pins", *at) == ""

    def test_unknown_ids(self, at: tuple[str, str]) -> None:
        assert complaint("pin", "000000", "--name", "n", *at) == "no path with the id '000000'"
        assert complaint("pin", "abc", "--name", "n", *at).startswith("an id has 6 hex digits or more")
        assert complaint("unpin", "000000", *at).startswith("there is no pin '000000'")
        assert complaint("unpin", "", *at).startswith("there is no pin ''")
        assert complaint("pin", "000000", "--name", "\n", *at).startswith("--name: must be")

    def test_verify_drops_what_is_damaged_and_says_so(self, at: tuple[str, str], directory: Path) -> None:
        assert run("verify", *at).endswith("are good; no problems.\n")
        victim = min(directory.glob("v1/chunks/*/*.chunk"))
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        text = run("verify", *at, fails=1)
        assert str(victim) in text
        assert text.endswith(f"6 chunks of {tokens_in(at):,} tokens are good; 1 problem.\n")
        assert not victim.exists()
        assert json.loads(run("verify", "--json", *at)) == {
            "findings": [],
            "chunks": 6,
            "tokens": tokens_in(at),
        }

    def test_clear(self, at: tuple[str, str]) -> None:
        assert complaint("clear", *at) == "say --yes: there is nobody to ask"
        size = json.loads(run("stats", "--json", *at))["bytes"]
        assert json.loads(run("clear", "--yes", "--json", *at)) == {"freed_bytes": size}
        assert run("ls", *at) == ""
        assert json.loads(run("stats", "--json", *at))["chunks"] == 0

    def test_clear_forgets_stored_responses_too(self, at: tuple[str, str], directory: Path) -> None:
        store = ResponseStore(directory, keep_days=30, max_bytes=2**20)
        store.put("anna", Turn("resp_1", None, [], [], {}, "hermes"), {})
        run("clear", "--yes", *at)
        with pytest.raises(ResponseMissing):
            store.response("anna", "resp_1")

    def test_path(self, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert run("path", *at) == f"{at[1]}\n"
        monkeypatch.setenv("ONCEREAD_CACHE_DIR", str(tmp_path / "from the environment"))
        assert run("path") == f"{tmp_path / 'from the environment'}\n"
        config = tmp_path / "c.toml"
        config.write_text('cache_dir = "beside"\n')
        monkeypatch.delenv("ONCEREAD_CACHE_DIR")
        assert json.loads(run("path", "--json", "--config", str(config))) == {
            "directory": str(tmp_path / "beside")
        }

    @pytest.mark.parametrize("command", [["ls"], ["stats"], ["pins"], ["verify"], ["clear", "--yes"]])
    def test_where_there_is_none_nothing_is_made(self, tmp_path: Path, command: list[str]) -> None:
        line = complaint(*command, "--cache-dir", str(tmp_path / "none"))
        assert line.startswith(f"there is no cache in {tmp_path / 'none'} yet")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "other").mkdir()
        assert "is not a cache directory" in complaint(*command, "--cache-dir", str(tmp_path / "other"))
        assert list((tmp_path / "other").iterdir()) == []

    def test_a_salt_is_a_servers_business(self, at: tuple[str, str]) -> None:
        assert complaint("ls", "--salt", "s", *at).startswith(
            "--salt names a namespace on a server: give --url"
        )

    def test_errors_are_one_line(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "onceread", "cache", "ls", "--cache-dir", str(tmp_path / "none")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("onceread: there is no cache in ")


def tokens_in(at: tuple[str, str]) -> int:
    tokens: int = json.loads(run("stats", "--json", *at))["tokens"]
    return tokens


class TestTerminal:
    def test_a_listing_fits_80_columns(self, at: tuple[str, str]) -> None:
        path_id = next(row[0] for row in rows(run("ls", *at)) if row[10] == "Who was first?")
        run("pin", path_id, "--name", "n", *at)
        lines = on_a_terminal("ls", *at)
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if line.strip() in ("one f16/f16", "another q8_0/q8_0")]
        (pinned,) = [line for line in lines if f"{path_id[:8]}*" in line]
        assert re.search(r"\d+ +14 +0\.1 +3 h ago +1 Who was first\?", pinned)
        assert any("3 d ago" in line for line in lines)
        assert lines[-1].strip() == "4 paths; * is pinned"

    def test_the_rest_does_too(self, at: tuple[str, str]) -> None:
        for command in (["stats"], ["pins"], ["verify"]):
            assert max(map(len, on_a_terminal(*command, *at))) <= 80

    def test_nothing_is_said_where_there_is_nothing(self, at: tuple[str, str]) -> None:
        run("clear", "--yes", *at)
        assert on_a_terminal("ls", *at) == ["Nothing is stored yet."]
        assert on_a_terminal("pins", *at) == ["Nothing is pinned."]

    def test_wide_and_endless_texts_are_cut(self) -> None:
        path = {
            "id": "0123456789ab",
            "namespace": "n",
            "model": "m",
            "tokens": 1_234_567,
            "own_tokens": 1_234_567,
            "text": "灯台守" * 30,
            "tail": "",
            "bytes_memory": 2**40,
            "bytes_disk": 0,
            "tiers": ["memory", "disk"],
            "last_used": "2024-02-29T12:00:00Z",
            "hits": 99_999,
            "pins": [],
        }
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=80, no_color=True)
        show_paths(console, PathList(paths=[path], total=1, next=None))  # type: ignore[list-item]
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.getvalue().splitlines()]
        assert "灯台" in lines[2]
        assert lines[2].rstrip().endswith("…")
        assert all(console.measure(line).maximum <= 80 for line in lines)

    def test_an_overview(self, at: tuple[str, str]) -> None:
        with serving(fake_app(CachedEngine())) as url:
            found = Overview.model_validate_json(httpx.get(f"{url}/cache").content)
        out = io.StringIO()
        show_overview(Console(file=out, force_terminal=True, width=80, no_color=True), found)
        assert "0 of 100 cells used" in out.getvalue()
        assert "RAM" in out.getvalue()

    @pytest.mark.parametrize(
        ("seconds", "says"),
        [(0, "just now"), (-5, "just now"), (60, "1 min ago"), (7199, "1 h ago"), (200_000, "2 d ago")],
    )
    def test_how_long_ago(self, seconds: float, says: str) -> None:
        assert ago(1000.0 - seconds, 1000.0) == says

    def test_text_can_not_move_the_cursor(self) -> None:
        assert clean("a\x1b[2J\tb\r\n\x9bc\u202e") == "a [2J b c"


def on_a_terminal(*arguments: str) -> list[str]:
    """The lines that a command shows on a terminal of 80 columns, without their styles."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "onceread", "cache", *arguments], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so where others say that it ended
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(30) == 0, shown
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()


class TestServer:
    @pytest.fixture
    def cached(self) -> CachedEngine:
        return CachedEngine()

    @pytest.fixture
    def url(self, cached: CachedEngine) -> Iterator[str]:
        keys = {"api_keys": ["anna=a-secret", "ben=b-secret"], "admin_key": "root"}
        with serving(fake_app(cached, **keys)) as url:
            yield url

    def test_the_life_of_a_pin(self, url: str) -> None:
        anna = ("--url", url, "--key", "a-secret")
        assert run("warm", "--prompt", "a lighthouse", *anna).startswith("Read 12 tokens in ")
        ((path_id, tokens, *_),) = rows(run("ls", *anna))
        assert tokens == "12"
        assert run("pin", path_id[:8], "--name", "n", *anna).startswith("Pinned 12 tokens as n, id ")
        assert rows(run("ls", *anna))[0][8] == "n"
        assert run("ls", "--url", url, "--key", "b-secret") == ""
        assert run("ls", "--url", url, "--key", "root", "--of", "anna") == run("ls", *anna)
        pin = json.loads(run("pins", "--json", *anna))["pins"][0]
        assert run("unpin", pin["id"], *anna) == f"Unpinned {pin['id']}.\n"
        assert run("clear", "--yes", *anna) == "Freed 0.0 MiB.\n"
        assert run("ls", *anna) == ""

    def test_salts(self, url: str) -> None:
        anna = ("--url", url, "--key", "a-secret")
        run("warm", "--prompt", "salted", "--salt", "s", *anna)
        assert run("ls", *anna) == ""
        assert len(rows(run("ls", "--salt", "s", *anna))) == 1

    def test_pages(self, url: str) -> None:
        anna = ("--url", url, "--key", "a-secret")
        for prompt in ("one", "two", "six"):
            run("warm", "--prompt", prompt, *anna)
        every = run("ls", *anna)
        assert len(rows(every)) == 3
        assert run("ls", "--all", *anna) == every
        assert rows(run("ls", "--limit", "2", *anna)) == rows(every)[:2]

    def test_warm_from_files(self, url: str, cached: CachedEngine, tmp_path: Path) -> None:
        anna = ("--url", url, "--key", "a-secret")
        (tmp_path / "p.txt").write_text("from a file")
        messages = [{"role": "system", "content": "Hi"}]
        (tmp_path / "list.json").write_text(json.dumps(messages))
        (tmp_path / "body.json").write_text(json.dumps({"messages": messages}))
        assert json.loads(run("warm", "--file", str(tmp_path / "p.txt"), "--json", *anna))["stored"] is True
        assert bytes(cached.requests[-1].prompt) == b"from a file"
        run("warm", "--messages", str(tmp_path / "list.json"), *anna)
        run("warm", "--messages", str(tmp_path / "body.json"), *anna)
        assert cached.requests[-1].prompt == cached.requests[-2].prompt

    def test_stats(self, url: str) -> None:
        run("warm", "--prompt", "a lighthouse", "--url", url, "--key", "a-secret")
        numbers = dict(rows(run("stats", "--url", url, "--key", "a-secret")))
        assert (numbers["memory.tokens"], numbers["disk.state"]) == ("12", "off")
        found = json.loads(run("stats", "--json", "--url", url, "--key", "a-secret"))
        assert found["tiers"]["memory"]["bytes"] >= 12 * TOKEN_BYTES

    def test_the_key_may_come_from_the_environment(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_KEY", "root")
        assert run("clear", "--all", "--yes", "--url", f"{url}/v1/") == "Freed 0.0 MiB.\n"

    def test_what_the_server_refuses_is_one_line(self, url: str) -> None:
        assert complaint("ls", "--url", url).startswith("You didn't provide an API key")
        assert complaint("ls", "--url", url, "--key", "wrong") == "Incorrect API key provided. (--key KEY)"
        anna = ("--url", url, "--key", "a-secret")
        assert complaint("clear", "--all", "--yes", *anna) == "Only the admin key may clear everyone's cache."
        assert complaint("pin", "abcdef", "--name", "n", *anna) == "no path with the id 'abcdef'"
        assert complaint("unpin", "abcdef", *anna) == "There is no pin 'abcdef'."
        assert complaint("unpin", "../pins", *anna).startswith("Unknown request URL: ")

    def test_what_is_no_server(self) -> None:
        assert complaint("ls", "--url", "http://127.0.0.1:1").startswith(
            "no server answers at http://127.0.0.1:1 ("
        )
        assert complaint("ls", "--url", "ftp://x").startswith("--url ftp://x is not an address")
        assert complaint("ls", "--url", "http://[::1").startswith("--url http://[::1 is not an address")
        secret = complaint("ls", "--url", "http://127.0.0.1:1", "--key", "hunter2\n")
        assert "hunter2" not in secret

    def test_another_kind_of_server(self) -> None:
        async def other(scope: Any, receive: Any, send: Any) -> None:
            status = 302 if scope["path"] == "/cache/pins" else 200
            headers = [(b"location", b"http://127.0.0.1:1/stolen")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"<html>"})

        with serving(other) as url:
            assert complaint("ls", "--url", url) == f"{url} does not answer as an Onceread server does"
            assert complaint("pins", "--url", url, "--key", "k").startswith(f"{url} answers with status 302")

    def test_one_without_a_cache(self) -> None:
        with serving(fake_app(FakeEngine())) as url:
            assert complaint("ls", "--url", url).startswith("There is no cache behind the context: ")
            assert "off" in run("stats", "--url", url)


class TestWhatToWarm:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "give one of --prompt TEXT, --file FILE and --messages FILE.json"),
            (["--prompt", "a", "--file", "b"], "give one of"),
            (["--file", "/no/such"], "/no/such can't be read: No such file or directory"),
            (["--prompt", "a", "--no-such-model-here"], ""),
        ],
    )
    def test_wrong_options(self, arguments: list[str], says: str) -> None:
        if says:
            assert complaint("warm", *arguments).startswith(says)
        else:
            run("warm", *arguments, fails=2)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"{", "is not JSON: "),
            (b"\xff", "is not UTF-8 text"),
            (b"[]", "messages: "),
            (b'{"other": 1}', "Give prompt or messages"),
            (b'[{"role": "king", "content": "x"}]', "messages[0].role: must be "),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, content: bytes, says: str) -> None:
        (tmp_path / "m.json").write_bytes(content)
        line = complaint("warm", "--messages", str(tmp_path / "m.json"))
        assert says in line
        assert "\n" not in line

    def test_a_model_that_is_not_there(self, tmp_path: Path) -> None:
        line = complaint("warm", "--prompt", "a", "--model", "/no/such.gguf", "--cache-dir", str(tmp_path))
        assert line.startswith("no such model file: /no/such.gguf")

    def test_nowhere_to_keep_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_NO_DISK_CACHE", "true")
        assert complaint("warm", "--prompt", "a").startswith("there is nothing to warm with --no-disk-cache")
