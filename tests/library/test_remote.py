"""A server's model as an object: what it sends and takes, and what is said when the other side fails."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.fakes import FakeEngine, fake_app, until_cancelled
from tests.server.live import serving

from onceread.engine.errors import EngineFailed
from onceread.engine.request import CachedBySource, DoneEvent, RequestHandle, TextEvent, Usage
from onceread.library.remote import RemoteError, RemoteLlama
from onceread.library.session import Session

HELLO = [{"role": "user", "content": "hello"}]
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that gives one request these bytes, whatever it was, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def sized(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, kind, len(body)) + body


def test_chats_and_completions_come_whole_and_as_streams() -> None:
    engine = FakeEngine()
    with serving(fake_app(engine)) as url:
        llama = RemoteLlama(f"{url}/v1/")
        assert llama.model == "fake"
        chunks = list(llama.create_chat_completion(HELLO, temperature=0.5, top_p=None))
        whole = llama.create_chat_completion(HELLO, stream=False)
        texts = list(llama.create_completion("once", max_tokens=3))
        tokens = llama.create_completion([111, 110], stream=False)
    assert [c["choices"][0]["delta"].get("content") for c in chunks[:-1]] == ["", "hé", "llo", None]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens_by_source"]["context"] > 0
    assert chunks[-1]["timings"]["prompt_n"] == 1
    assert engine.requests[0].sampling.temperature == 0.5
    assert whole["choices"][0]["message"]["content"] == "héllo"
    assert "".join(c["choices"][0]["text"] for c in texts[:-1]) == "héllo"
    assert engine.requests[2].max_tokens == 3
    assert tokens["choices"][0]["text"] == "héllo"
    assert engine.requests[3].prompt == (111, 110)


def test_closing_the_stream_stops_the_reply_on_the_server() -> None:
    engine = FakeEngine(until_cancelled)
    with serving(fake_app(engine)) as url:
        chunks = RemoteLlama(url).create_chat_completion(HELLO)
        while not next(chunks)["choices"][0]["delta"].get("content"):
            pass
        chunks.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 10
        while not engine.handles[0].cancelled:
            assert time.monotonic() < deadline, "it went on"
            time.sleep(0.01)


def test_a_key_is_sent_and_a_wrong_one_is_refused() -> None:
    with serving(fake_app(api_keys=("ann=secret",))) as url:
        assert RemoteLlama(url, "secret").model == "fake"
        with pytest.raises(RemoteError) as caught:
            _ = RemoteLlama(url, "wrong").model
    assert caught.value.status == 401
    assert "wrong" not in str(caught.value)


def test_the_servers_own_words_are_in_the_error() -> None:
    with serving(fake_app()) as url, pytest.raises(RemoteError, match=r"^temperature: .*100") as caught:
        RemoteLlama(url).create_chat_completion(HELLO, temperature=200)
    assert caught.value.status == 400


def test_an_error_in_the_middle_of_the_stream_leaves_the_session_as_it_was() -> None:
    def breaks(engine: FakeEngine, handle: RequestHandle) -> None:
        handle.push(TextEvent(0, "half a ", 1))
        handle.push(DoneEvent(Usage(1, 1, CachedBySource(), 1, 0, 0, 0), EngineFailed("the engine broke")))

    with serving(fake_app(FakeEngine(breaks))) as url:
        session = Session(RemoteLlama(url))
        with pytest.raises(RemoteError, match="the engine broke"):
            session.send("hello")
    assert session.messages == []


def test_a_server_that_sends_no_end_mark_but_a_finish_is_taken_at_its_word() -> None:
    with answering(HEAD + b"\r\n: a comment\n\nevent: x\n" + CHUNK + END) as url:
        assert Session(RemoteLlama(url, model="m")).send("hello") == "hi"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (HEAD + b"\r\n" + CHUNK, "broke off in the middle of the reply"),
        (HEAD + b"Content-Length: 9999\r\n\r\n" + CHUNK, "broke off"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(CHUNK), CHUNK), "broke off"),
        (HEAD + b"\r\n" + CHUNK + b"data: {oops\n\n", "does not answer as a server with OpenAI's API"),
        (HEAD + b"\r\ndata: [1]\n\n", "does not answer as a server with OpenAI's API"),
        (HEAD + b'\r\ndata: {"error": {"message": "too\\u001b[2J hot"}}\n\n', r"too \[2J hot"),
        (sized(b'{"detail": "Not Found"}', b"404 Not Found"), "Not Found"),
        (sized(b"<html>", b"502 Bad Gateway", b"text/html"), "status 502"),
        (sized(b'"x"', b"500 Oh"), "status 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"SSH-2.0-OpenSSH\r\n", "no server answers|broke off"),
        (b"", "no server answers|broke off"),
    ],
    ids=[
        "ends early",
        "ends before its length",
        "ends within chunks",
        "no JSON",
        "no object",
        "an error with an escape sequence",
        "another API's 404",
        "a proxy's 502",
        "a 500 that is no object",
        "a redirect",
        "no HTTP",
        "nothing",
    ],
)
def test_what_goes_wrong_is_one_line(reply: bytes, why: str) -> None:
    with answering(reply) as url, pytest.raises(RemoteError, match=why) as caught:
        list(RemoteLlama(url, model="m").create_chat_completion(HELLO))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_silence_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(RemoteError, match=r"did not answer in 0\.2 s"):
            RemoteLlama(url, model="m", timeout=0.2).create_chat_completion(HELLO)


@pytest.mark.parametrize("url", ["", ":::", "ftp://x", "http://", "http://[::1", "http://x:0", "http://x:no"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        RemoteLlama(url)


def test_a_key_that_would_break_the_header_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        RemoteLlama("http://x", "sec\r\nret")
    assert "ret" not in str(caught.value).replace("printable", "")


def test_a_server_without_models_is_said_to_have_none() -> None:
    with answering(sized(b'{"data": []}')) as url, pytest.raises(RemoteError, match="lists no models"):
        _ = RemoteLlama(url).model


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[5]}',
        b'{"choices":5}',
        b'{"choices":[{"delta":"hi"}]}',
        b'{"choices":[{"delta":{"content":["hi"]}}]}',
        b'{"choices":[{"delta":{"reasoning_content":5}}]}',
        b'{"choices":[{"delta":{},"finish_reason":["stop"]}]}',
    ],
)
def test_a_chunk_of_wrong_types(event: bytes) -> None:
    with (
        answering(HEAD + b"\r\n" + CHUNK + b"data: " + event + b"\n\n" + END) as url,
        pytest.raises(RemoteError, match="does not answer as a server with OpenAI's API does"),
    ):
        list(RemoteLlama(url, model="m").create_chat_completion(HELLO))


@pytest.mark.parametrize(
    "numbers",
    [
        b'"usage":"many"',
        b'"usage":{"prompt_tokens":"5","completion_tokens":[1],"prompt_tokens_details":{"cached_tokens":3}}',
        b'"usage":{"prompt_tokens":{},"prompt_tokens_details":5}',
        b'"usage":{"prompt_tokens_details":{"cached_tokens_by_source":[1]}}',
        b'"timings":{"predicted_per_second":"fast","prompt_n":"x","cache_n":{}}',
    ],
)
def test_numbers_of_wrong_types_count_as_not_told(numbers: bytes) -> None:
    last = b'data: {"choices":[],' + numbers + b"}\n\n"
    with answering(HEAD + b"\r\n" + CHUNK + END + last) as url:
        session = Session(RemoteLlama(url, model="m"))
        assert session.send("hello") == "hi"
    assert session.last is not None
    assert session.last.prompt_tokens is None
    assert session.last.evaluated is None


def test_half_a_character_can_be_saved(tmp_path: Path) -> None:
    half = rb'data: {"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}' + b"\n\n"
    with answering(HEAD + b"\r\n" + half + END) as url:
        session = Session(RemoteLlama(url, model="m"))
        assert session.send("hello") == "a\N{REPLACEMENT CHARACTER}"
    session.save(tmp_path / "s.json")


def test_a_refusal_that_breaks_off() -> None:
    torn = sized(b"{" * 10, status=b"400 Bad Request").replace(b"Length: 10", b"Length: 99")
    with answering(torn) as url, pytest.raises(RemoteError, match="status 400"):
        list(RemoteLlama(url, model="m").create_chat_completion(HELLO))


def test_a_list_of_models_that_is_none() -> None:
    with answering(sized(b'{"data":5}')) as url, pytest.raises(RemoteError, match="lists no models"):
        _ = RemoteLlama(url).model
