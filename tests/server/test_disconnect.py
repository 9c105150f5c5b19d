"""A client that goes away stops costing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.fakes import FakeEngine, fake_app, until_cancelled
from tests.server.live import serving

from onceread.engine.request import DoneEvent, RequestHandle, Usage

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def never(engine: FakeEngine, handle: RequestHandle) -> None:
    """Reads a long prompt, and nobody sees a token of it."""
    deadline = time.monotonic() + 10
    while not handle.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    handle.push(DoneEvent(Usage()))


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(fake_app(engine)) as url:
        yield url


def cancelled(engine: FakeEngine, n: int = 1) -> bool:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        if len(engine.handles) == n and all(handle.cancelled for handle in engine.handles):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_before_the_first_token(engine: FakeEngine, url: str, stream: bool) -> None:
    engine.script = never
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + CHAT, json={"messages": MESSAGES, "stream": stream}, timeout=0.3)
    assert cancelled(engine)


def test_in_the_middle_of_a_stream(engine: FakeEngine, url: str) -> None:
    engine.script = until_cancelled
    with httpx.stream("POST", url + CHAT, json={"messages": MESSAGES, "stream": True}) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(5)]
        assert not engine.handles[0].cancelled
    assert cancelled(engine)


def test_in_the_middle_of_a_whole_answer(engine: FakeEngine, url: str) -> None:
    engine.script = until_cancelled
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + CHAT, json={"messages": MESSAGES}, timeout=0.3)
    assert cancelled(engine)


OTHER_FACES = [
    ("/completion", {"prompt": "a"}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/generate", {"prompt": "a", "raw": True}),
]


@pytest.mark.parametrize(("path", "body"), OTHER_FACES, ids=[path for path, _ in OTHER_FACES])
def test_on_other_faces(engine: FakeEngine, url: str, path: str, body: Any) -> None:
    engine.script = until_cancelled
    with httpx.stream("POST", url + path, json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines)
        assert not engine.handles[0].cancelled
    assert cancelled(engine)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + path, json={**body, "stream": False}, timeout=0.3)
    assert cancelled(engine, 2)


def test_all_prompts_of_a_request(engine: FakeEngine, url: str) -> None:
    engine.script = until_cancelled
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + "/v1/completions", json={"prompt": ["a", "b", "c"]}, timeout=0.3)
    assert cancelled(engine, 3)


def test_when_a_later_prompt_is_refused(engine: FakeEngine, url: str) -> None:
    def first_only(engine: FakeEngine, handle: RequestHandle) -> None:
        engine.refuses = RuntimeError("no more")
        until_cancelled(engine, handle)

    engine.script = first_only
    prompts = ["a"] * 50  # the refusal comes from the first one's thread, some prompts later
    response = httpx.post(url + "/v1/completions", json={"prompt": prompts})
    assert response.status_code == 500
    assert cancelled(engine, len(engine.handles))


def test_while_a_thread_makes_the_prompt(engine: FakeEngine) -> None:
    app = fake_app(engine)
    tokenizer = app.state.onceread.serving().tokenizer
    raw, began, go_on = tokenizer.raw, threading.Event(), threading.Event()

    def slow(text: str) -> tuple[int, ...]:
        began.set()
        go_on.wait(5)
        tokens: tuple[int, ...] = raw(text)
        return tokens

    tokenizer.raw = slow
    engine.script = never
    with serving(app) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + "/v1/completions", json={"prompt": "a"}, timeout=0.3)
        assert began.is_set()
        time.sleep(0.2)  # the server has seen it by now
        go_on.set()
        assert cancelled(engine)


def test_what_goes_on_beside(engine: FakeEngine, url: str) -> None:
    """Many that go leave one that stays alone."""
    engine.script = until_cancelled

    def leave() -> None:
        with httpx.stream("POST", url + CHAT, json={"messages": MESSAGES, "stream": True}) as response:
            next(response.iter_lines())

    threads = [threading.Thread(target=leave) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cancelled(engine, 20)
    from tests.server.fakes import echo

    engine.script = echo
    assert httpx.post(url + CHAT, json={"messages": MESSAGES}).status_code == 200
    text = httpx.get(url + "/metrics").text
    assert (
        'onceread_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 21.0' in text
    )
