"""A server behind OpenAI's chat API, asked over HTTP by the standard library alone."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from onceread.bench.peers.contract import GREEDY, Answer, Running, Stopwatch
from onceread.bench.workloads.contract import Message

TIMEOUT = 600.0


class HttpRunning(Running):
    """A server at a base URL, which may or may not end in ``/v1``.

    ``extra`` goes into every body: what this server wants besides, such as how to forbid the end of a reply.
    """

    def __init__(self, url: str, *, model: str = "default", key: str | None = None, **extra: Any) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not a URL of a server: {url}")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._body = {"model": model, **GREEDY, **extra}

    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        body = {
            **self._body, "messages": list(messages), "max_tokens": reply,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        payload = json.dumps(body).encode()
        watch = Stopwatch()
        connection = self._connection()
        try:
            connection.request("POST", f"{self._base}/v1/chat/completions", payload, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                return watch.done(f"status {response.status}: {response.read(300).decode(errors='replace')}")
            for event in _events(response):
                if error := event.get("error"):
                    return watch.done(
                        str(error.get("message", error) if isinstance(error, dict) else error)[:300]
                    )
                for choice in event.get("choices") or ():
                    watch.piece(choice.get("delta", {}).get("content") or "")
                _read_costs(watch.answer, event)
            return watch.done(None if watch.answer.arrivals else "no text came")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return watch.done(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def get(self, path: str) -> str:
        """The body of a route outside of /v1. Raises OSError, HTTPException."""
        connection = self._connection()
        try:
            connection.request("GET", self._base + path, headers=self._headers)
            response = connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                raise http.client.HTTPException(f"{path}: status {response.status}")
            return text
        finally:
            connection.close()

    def metric(self, name: str) -> float | None:
        """A number without labels from ``/metrics``."""
        try:
            for line in self.get("/metrics").splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        except (OSError, http.client.HTTPException):
            pass
        return None

    def stop(self) -> None:
        """Whoever started it stops it."""

    def _connection(self) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            yield json.loads(line[5:])


def _read_costs(answer: Answer, event: dict[str, Any]) -> None:
    """OpenAI's usage, and llama-server's timings where a server has them: they count what was computed."""
    if usage := event.get("usage"):
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.completion_tokens = usage.get("completion_tokens")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is not None and answer.prompt_tokens is not None:
            answer.evaluated = answer.prompt_tokens - cached
    if timings := event.get("timings"):
        answer.evaluated = timings.get("prompt_n", answer.evaluated)
        if "prompt_ms" in timings:
            answer.prompt_seconds = timings["prompt_ms"] / 1000
