"""Any server that is up already and has OpenAI's chat API: vLLM, KoboldCpp, Ollama, another machine's."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from onceread.bench.peers.contract import Peer, Running, Setting
from onceread.bench.peers.http import HttpRunning


class Url(Peer):
    """It is neither started nor stopped, so nothing of a restart can be seen, and it may know the texts already."""

    restarts = False

    def __init__(self, url: str, *, model: str = "default", key: str | None = None) -> None:
        """Raises ValueError."""
        HttpRunning(url)
        self.name = urlsplit(url if "//" in url else f"http://{url}").netloc.replace(":", "-")
        self.about = f"whatever answers at {url}"
        self._url, self._model, self._key = url, model, key

    def version(self) -> str:
        return self.about

    def start(self, setting: Setting, folder: Path) -> Running:
        return HttpRunning(self._url, model=self._model, key=self._key, ignore_eos=True)
