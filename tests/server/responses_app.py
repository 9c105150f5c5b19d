"""The Responses API over a fake engine with a real template, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.server.fakes import FakeEngine, FakeModel
from tests.server.test_tools import Vocab
from tests.server.tool_templates import QWEN

from onceread.engine.request import DoneEvent, FinishEvent, RequestHandle, TextEvent, TokenLogprob, Usage
from onceread.server.app import app_state, create_app
from onceread.server.settings import Settings

RESPONSES = "/v1/responses"
F = {
    "type": "function",
    "name": "f",
    "description": "Does.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Asked:
    """An app over a fake engine that answers with a text, piece by piece."""

    def __init__(self, template: str = QWEN, directory: Path | None = None, **settings: Any) -> None:
        where = {"no_disk_cache": True} if directory is None else {"cache_dir": directory}
        self.engine = FakeEngine(self._script)
        self.engine.limit = 10_000
        made = Settings(**where, **settings)
        self.app = create_app(self.engine, FakeModel(Vocab(), template), made)  # type: ignore[arg-type]
        self.store = app_state(self.app).responses
        self.client = TestClient(self.app, raise_server_exceptions=False)
        self.text, self.reason = "Hi there.", "stop"

    def says(self, text: str, reason: str = "stop") -> None:
        """What the model answers from now on."""
        self.text, self.reason = text, reason

    def ask(self, items: Any = "Hello", *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """The response. It is what OpenAI's client takes it for."""
        answer = self.client.post(RESPONSES, json={"input": items, **body}, headers=headers)
        assert answer.status_code == 200, answer.text
        Response.model_validate_json(answer.content, strict=True)
        return answer.json()

    def stream(self, items: Any = "Hello", **body: Any) -> list[Any]:
        """The events of a stream, each as OpenAI's client takes it."""
        answer = self.client.post(RESPONSES, json={"input": items, "stream": True, **body})
        assert answer.status_code == 200, answer.text
        *blocks, rest = answer.text.split("\n\n")
        assert rest == ""
        events = []
        for block in blocks:
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            EVENT.validate_json(data.removeprefix("data: "), strict=True)
            events.append(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    def error(self, items: Any = "Hello", status: int = 400, **body: Any) -> Any:
        answer = self.client.post(RESPONSES, json={"input": items, **body})
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    def prompt(self, at: int = -1) -> str:
        """One that the engine got, control tokens written out."""
        tokens = self.engine.requests[at].prompt
        return b"".join([bytes([t]) if t < 256 else Vocab().text(t).encode() for t in tokens]).decode()

    def _script(self, _: FakeEngine, handle: RequestHandle) -> None:
        for i in range(0, len(self.text), 3):
            piece = self.text[i : i + 3]
            told = handle.request.logprobs is not None
            handle.push(TextEvent(0, piece, i, (TokenLogprob(1, piece.encode(), -0.5),) if told else ()))
        handle.push(FinishEvent(0, self.reason))  # type: ignore[arg-type]
        n = len(handle.request.prompt)
        handle.push(DoneEvent(Usage(prompt_tokens=n, evaluated_tokens=n, completion_tokens=5)))
