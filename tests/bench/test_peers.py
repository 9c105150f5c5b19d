"""How servers are started, asked and ended, with programs that are no servers."""

from __future__ import annotations

import http.server
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onceread.bench.machine import LoadMeter, memory_of, size_of_folder
from onceread.bench.peers import PEERS, find_peers
from onceread.bench.peers.contract import PeerFailed
from onceread.bench.peers.http import HttpRunning
from onceread.bench.peers.process import Child
from onceread.bench.peers.url import Url
from onceread.bench.peers.venvs import venv_python
from tests.bench.fakes import SETTING

SERVER = "import sys; print('READY at home', flush=True); sys.stdin.read()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


class TestProcesses:
    def test_are_waited_for_and_end_when_told(self, tmp_path: Path) -> None:
        for terminate in (True, False):
            child = Child(python(SERVER), tmp_path / "log", cwd=tmp_path)
            assert child.wait_for("READY") == "READY at home"
            assert memory_of(child.pid) > 2**20
            child.stop(terminate=terminate)
            assert not psutil.pid_exists(child.pid)
            assert memory_of(child.pid) == 0

    def test_that_die_tell_their_last_words(self, tmp_path: Path) -> None:
        child = Child(python("raise SystemExit('no such model')"), tmp_path / "log", cwd=tmp_path)
        with pytest.raises(PeerFailed, match="did not start: no such model"):
            child.wait_for("READY")

    def test_that_never_come_up_are_ended(self, tmp_path: Path) -> None:
        child = Child(python("import sys; sys.stdin.read()"), tmp_path / "log", cwd=tmp_path)
        with pytest.raises(PeerFailed, match="not a word"):
            child.wait_for("READY", timeout=0.2)
        assert not psutil.pid_exists(child.pid)

    def test_cpu_time_of_a_server_is_not_foreign(self, tmp_path: Path) -> None:
        burn = "import time; e = time.process_time() + 0.5\nwhile time.process_time() < e: pass\n" + SERVER
        meter = LoadMeter()
        child = Child(python(burn), tmp_path / "log", cwd=tmp_path)
        meter.started(child.pid)
        child.wait_for("READY")
        meter.ending(child.pid)
        child.stop()
        assert meter.load().server >= 0.5
        assert meter.load().wall > 0.4


def test_an_environment_that_cant_be_made_says_where_the_story_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(PeerFailed, match=r"the whole story is in .*odd\.log"):
        venv_python(tmp_path, "odd", ["something"])


def test_a_folder_takes_what_its_files_do(tmp_path: Path) -> None:
    assert size_of_folder(tmp_path / "nothing") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(10_000))
    assert 10_000 <= size_of_folder(tmp_path) < 40_000


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the next of ``answers``: a status and either a text or events."""

    answers: list[tuple[int, str | list[Any]]] = []  # noqa: RUF012
    asked: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        Scripted.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, answer = Scripted.answers.pop(0)
        if not isinstance(answer, str):
            answer = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in answer) + "data: [DONE]\n\n"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"# HELP n x\nn 12\nn_more 3\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Scripted.answers.clear()
    Scripted.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def text(piece: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": piece}}]}


class TestAsking:
    def test_reads_text_usage_and_timings(self, url: str) -> None:
        usage = {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 40}}
        timings = {"prompt_n": 11, "prompt_ms": 500.0}
        last = {"choices": [], "usage": usage, "timings": timings}
        Scripted.answers.append((200, [text(None), text("Hi"), text(" you"), last]))
        answer = HttpRunning(url, ignore_eos=True).answer([{"role": "user", "content": "x"}], 2)
        assert (answer.text, answer.error, answer.prompt_tokens, answer.completion_tokens) == (
            "Hi you",
            None,
            50,
            2,
        )
        assert (answer.evaluated, answer.prompt_seconds) == (11, 0.5)
        assert len(answer.arrivals) == 2
        assert answer.ttft is not None
        assert 0 < answer.ttft <= answer.arrivals[1] <= answer.wall
        (body,) = Scripted.asked
        assert (body["temperature"], body["ignore_eos"], body["stream"], body["max_tokens"]) == (
            0.0,
            True,
            True,
            2,
        )

    def test_goes_by_usage_where_there_are_no_timings(self, url: str) -> None:
        usage = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}
        Scripted.answers.append((200, [text("Hi"), {"usage": usage}]))
        assert HttpRunning(url).answer([], 1).evaluated == 10
        Scripted.answers.append((200, [text("Hi"), {"usage": {"prompt_tokens": 50}}]))
        assert HttpRunning(url).answer([], 1).evaluated is None

    @pytest.mark.parametrize(
        ("status", "answer", "error"),
        [
            (503, "busy", "status 503: busy"),
            (200, [{"error": {"message": "out of room"}}], "out of room"),
            (200, [text("")], "no text came"),
            (200, "data: {half\n\n", "JSONDecodeError"),
        ],
        ids=["a status", "an error in the stream", "an empty reply", "half an event"],
    )
    def test_makes_an_error_of(self, url: str, status: int, answer: Any, error: str) -> None:
        Scripted.answers.append((status, answer))
        found = HttpRunning(url).answer([], 1).error
        assert found is not None
        assert found.startswith(error)

    def test_of_a_server_that_is_gone_is_an_error_too(self) -> None:
        assert "refused" in (HttpRunning("127.0.0.1:9").answer([], 1).error or "")

    def test_a_server_that_refuses_a_fixed_length_is_asked_without(self, url: str, tmp_path: Path) -> None:
        Scripted.answers += [(400, "unknown parameter"), (200, [text("Hi")]), (200, [text("Ho")])]
        server = Url(url).start(SETTING, tmp_path)
        assert [server.answer([], 1).text, server.answer([], 1).text] == ["Hi", "Ho"]
        assert ["ignore_eos" in body for body in Scripted.asked] == [True, False, False]

    def test_one_that_nobody_serves_is_found_out_before_anything_is_played(
        self, url: str, tmp_path: Path
    ) -> None:
        Url(url).prepare(tmp_path)  # whatever it answers to a list of models
        with pytest.raises(PeerFailed, match=r"nobody answers at 127\.0\.0\.1:9: Connection refused"):
            Url("127.0.0.1:9").prepare(tmp_path)

    def test_metrics_are_read_by_their_whole_name(self, url: str) -> None:
        server = HttpRunning(url)
        assert (server.metric("n"), server.metric("n_more"), server.metric("more")) == (12.0, 3.0, None)


def test_peers_are_found_by_name_and_any_url_is_one() -> None:
    assert [peer.name for peer in find_peers(list(PEERS))] == list(PEERS)
    with pytest.raises(ValueError, match="no peer vllm; there are onceread, "):
        find_peers(["vllm"])
    assert Url("127.0.0.1:8000/v1").name == "127.0.0.1-8000"
    with pytest.raises(ValueError, match="not a URL"):
        Url("ftp://x")
