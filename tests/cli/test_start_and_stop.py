"""`onceread serve` as a process: it answers while it loads, says when it is ready, stops in order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.model, pytest.mark.skipif(os.name != "posix", reason="signals")]

STREAM = {"prompt": "Once upon a time", "max_tokens": 4000, "stream": True, "ignore_eos": True}


class Served:
    """A server in its own process, once it has printed its address."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--ctx-size", "4352", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = self._until("address")
        found = re.search(r"http://\S+", self.said[-1])
        assert found
        self.url = found[0]

    def _until(self, word: str) -> list[str]:
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if word in line:
                return lines
        pytest.fail(f"it ended before it said {word!r}: {lines} {self.process.communicate()}")

    def ready(self) -> Served:
        self.said += self._until("Ready after")
        return self

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[Served]:
    server = Served(*arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@contextlib.contextmanager
def streaming(url: str) -> Iterator[list[str]]:
    """A client that reads a long stream on a thread; the lines so far. It has begun when this is entered."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    begun.set()
        except httpx.HTTPError as error:
            lines.append(repr(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    yield lines
    thread.join(30)
    assert not thread.is_alive()


def test_it_says_what_it_serves_answers_and_stops() -> None:
    with served("--model-name", "tiny") as server:
        early = httpx.get(
            f"{server.url}/health", timeout=30
        )  # HTTP is up, or about to be, while the model loads
        assert early.json()["status"] in ("loading", "ok")
        server.ready()
        health = httpx.get(f"{server.url}/health").json()
        assert health == {"status": "ok", "cache": {"memory": "ok", "disk": "ok"}}
        text = "".join(server.said)
        assert re.search(r"model +tiny \(.*135M parameters, 92 MiB\)", text)
        assert "4,352 tokens for all" in text
        assert "4 at a time" in text
        assert re.search(r"cache +RAM \d.* [GM]iB; disk \d.* [GM]iB in .*cache", text)
        assert re.search(r"threads +\d+ for decoding, \d+ for prefill", text)
        assert [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["tiny"]
        assert server.stop() == (0, "Stopped.\n", "")


def test_a_running_stream_gets_its_grace_and_then_an_error_that_says_so() -> None:
    with served("--shutdown-grace", "1") as server, streaming(server.ready().url) as lines:
        started = time.monotonic()
        code, _, err = server.stop(signal.SIGINT)
        assert (code, err) == (0, "")
        assert 0.8 < time.monotonic() - started < 6
    assert '"shutting_down"' in "".join(lines[-3:])


def test_a_second_signal_ends_it_now() -> None:
    with served("--shutdown-grace", "60") as server, streaming(server.ready().url):
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        code, _, err = server.stop()
        assert (code, err) == (1, "")
        assert time.monotonic() - started < 8


def test_an_idle_connection_survives() -> None:
    patient = httpx.Limits(keepalive_expiry=60)  # httpx itself would let go after 5 seconds
    with served() as server, httpx.Client(base_url=server.ready().url, limits=patient) as client:
        addresses = []
        for pause in (6, 0):  # and so would uvicorn
            with client.stream("GET", "/health") as response:
                addresses.append(response.extensions["network_stream"].get_extra_info("client_addr"))
                response.read()
            time.sleep(pause)
        assert addresses[0] == addresses[1]


def test_a_context_that_does_not_fit_is_one_line(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--model", str(smollm2_path)]
    done = subprocess.run(
        [*command, "--ctx-size", "1000000000"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(r"onceread: a context of 1000000000 tokens takes .*--ctx-size.*\n", done.stderr)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.999])
def test_a_truncated_model_is_one_line(smollm2_path: Path, tmp_path: Path, share: float) -> None:
    whole = smollm2_path.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--model", str(cut)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(cut) in done.stderr
    assert "no reason given" not in done.stderr


def test_a_chat_template_that_does_not_exist_is_one_line() -> None:
    command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--chat-template", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no chat template 'nowhere'" in done.stderr


def test_what_was_warmed_without_a_server_is_there_when_it_starts(smollm2_path: Path, tmp_path: Path) -> None:
    prompt = "The keeper wrote every evening into a book what ships had passed. " * 6
    (tmp_path / "prompt.txt").write_text(prompt)
    cache = [sys.executable, "-m", "onceread", "cache"]
    warm = ["warm", "--model", str(smollm2_path), "--file", str(tmp_path / "prompt.txt"), "--salt", "s"]
    done = subprocess.run([*cache, *warm, "--json"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["stored"] is True
    again = subprocess.run([*cache, *warm], capture_output=True, text=True, timeout=100, check=False)
    n = read["usage"]["prompt_tokens"]
    assert re.fullmatch(rf"Read {n} tokens in \d+\.\d s; {n - 1} were known before\.\n", again.stdout)
    listed = subprocess.run([*cache, "ls"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert [line.split("\t")[1] for line in listed.splitlines()] == [str(n)]
    with served() as server:
        body = {"prompt": prompt, "max_tokens": 1, "cache_salt": "s"}
        usage = httpx.post(f"{server.ready().url}/v1/completions", json=body, timeout=60).json()["usage"]
    by_source = usage["prompt_tokens_details"]["cached_tokens_by_source"]
    assert (usage["prompt_tokens"], by_source["disk"]) == (n, n - 1)
