"""Any server that is up already and has OpenAI's chat API: vLLM, KoboldCpp, Ollama, another machine's."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from onceread.bench.peers.contract import Answer, Peer, PeerFailed, Running, Setting
from onceread.bench.peers.http import HttpRunning
from onceread.bench.workloads.contract import Message


class Url(Peer):
    """It is neither started nor stopped, so nothing of a restart can be seen, and it may know the texts already."""

    restarts = False

    def __init__(self, url: str, *, model: str = "default", key: str | None = None) -> None:
        """Raises ValueError."""
        HttpRunning(url)
        self.name = urlsplit(url if "//" in url else f"http://{url}").netloc.replace(":", "-")
        self.about = f"whatever answers at {url}"
        self._url, self._model, self._key = url, model, key

    def prepare(self, work: Path) -> None:
        try:
            HttpRunning(self._url).get("/v1/models")
        except http.client.HTTPException:
            pass  # somebody is there
        except OSError as error:
            raise PeerFailed(f"nobody answers at {self._url}: {error.strerror or error}") from None

    def version(self) -> str:
        return "It does not tell its version"

    def start(self, setting: Setting, folder: Path) -> Running:
        return _Running(self._url, model=self._model, key=self._key, ignore_eos=True)


class _Running(HttpRunning):
    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        """Replies of a fixed length where the server knows how; one that refuses the parameter gets it once."""
        answer = super().answer(messages, reply)
        if (answer.error or "").startswith(("status 400", "status 422")) and self._body.pop(
            "ignore_eos", None
        ):
            return super().answer(messages, reply)
        return answer
