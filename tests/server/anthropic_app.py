"""An app that answers Anthropic's clients, over a fake engine that says what a test tells it to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from tests.server.fakes import FakeEngine, FakeModel
from tests.server.test_tools import Vocab

from onceread.engine.request import CachedBySource, DoneEvent, FinishEvent, RequestHandle, TextEvent, Usage
from onceread.native.model import MemoryKind
from onceread.server.app import create_app
from onceread.server.settings import Settings

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "Hi"}
F = {
    "name": "f",
    "description": "Does.",
    "input_schema": {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
        "required": ["x"],
    },
}
G = {"name": "g", "input_schema": {"type": "object", "properties": {}}}

_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@dataclass
class Says:
    """What the model answers."""

    text: str = "héllo"
    reason: Any = "stop"
    stop_string: str | None = None
    cached: int = 0  # tokens of the prompt
    known: bool = True  # the prompt's cost is known when the first token is


@dataclass
class App:
    """The app, and what it was made of."""

    template: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    memory_kind: MemoryKind = MemoryKind.WINDOWED  # breakpoints matter there

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self._script)
        model: Any = FakeModel(Vocab(), self.template, memory_kind=self.memory_kind)
        self.app = create_app(self.engine, model, Settings(**self.settings))  # type: ignore[arg-type]
        self.client = TestClient(self.app, raise_server_exceptions=False)
        self.says = Says()

    def post(self, path: str = MESSAGES, **body: Any) -> Any:
        """The response to a request for at most 50 tokens; None takes a field away."""
        fields = {"model": "any", "max_tokens": 50, "messages": [USER], **body}
        return self.client.post(path, json={k: v for k, v in fields.items() if v is not None})

    def ask(self, **body: Any) -> Any:
        """The message, which the client's own types can hold."""
        answer = self.post(**body)
        assert answer.status_code == 200, answer.text
        Message.model_validate(answer.json(), strict=True)
        return answer.json()

    def stream(self, **body: Any) -> list[Any]:
        """The events of a stream, which the client's own types can hold, and pings."""
        answer = self.post(stream=True, **body)
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    @property
    def prompt(self) -> str:
        """The last one, control tokens written out."""
        tokens = self.engine.requests[-1].prompt
        data = b"".join(bytes([t]) if t < 256 else Vocab().text(t).encode() for t in tokens)
        return data.decode()

    def _script(self, _: FakeEngine, handle: RequestHandle) -> None:
        says, n = self.says, len(handle.request.prompt)
        usage = Usage(n, n - says.cached, CachedBySource(memory=says.cached))
        if says.known:
            handle.prompt_usage = usage
        for piece in [says.text[i : i + 3] for i in range(0, len(says.text), 3)]:
            handle.push(TextEvent(0, piece, 1))
        handle.push(FinishEvent(0, says.reason, says.stop_string))
        done = Usage(n, n - says.cached, CachedBySource(memory=says.cached), 7)
        handle.push(DoneEvent(done))


def events_of(text: str) -> list[Any]:
    found = []
    for event in text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        said = json.loads(data.removeprefix("data: "))
        assert name == f"event: {said['type']}"
        if said["type"] not in ("ping", "error"):
            _event.validate_python(said, strict=True)
        found.append(said)
    return found


def told(app: App, **body: Any) -> list[str]:
    """A stream's events in short: their names, with the block's type or the delta's text."""
    short = []
    for event in app.stream(**body):
        said = event.get("content_block", {}).get("type") or ""
        if event["type"] == "content_block_delta":
            delta = {k: v for k, v in event["delta"].items() if k != "type"}
            (said,) = delta.values()
        short.append(f"{event['type']} {said}".strip())
    return short
