"""Servers for tests of the benchmark: they compute nothing, and say what they would have computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onceread.bench.peers.contract import Answer, Peer, PeerFailed, Running, Setting
from onceread.bench.texts import Corpus
from onceread.bench.twin import Prompter, Twin
from onceread.bench.workloads.contract import Ask, Message
from tests.server.fakes import FakeModel

SETTING = Setting(Path("fake.gguf"), 8192, 2, 4, 512, (), True)
WORDS = "harbour lamp keeper island boat night oil glass stair rock wave letter rope bell bread storm".split()  # noqa: SIM905


def fixed_corpus() -> Corpus:
    """Texts that are the same with every Python."""
    rng = random.Random(7)

    def sentence(n: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(n)).capitalize() + "."

    paragraphs = tuple(" ".join(sentence(rng.randint(5, 12)) for _ in range(5)) for _ in range(60))
    functions = tuple(f"def f{i}(a, b):\n    return a * {i} + b  # {sentence(6)}" for i in range(60))
    return Corpus(paragraphs, functions)


class FakeClock:
    """How fast the fake servers are, in tokens a second."""

    prefill, decode = 1000.0, 100.0


class FakePeer(Peer):
    """``remembers``: ``all``, ``last`` or ``nothing``. ``slow``: times a request takes longer."""

    alive: list[str] = []  # noqa: RUF012 - of all of them together

    def __init__(
        self, name: str, remembers: str = "all", *, slow: float = 1.0, tells: bool = True, broken: str = ""
    ) -> None:
        self.name, self.about = name, f"a fake that remembers {remembers}"
        self.remembers, self.slow, self.tells, self.broken = remembers, slow, tells, broken
        self.prompter = Prompter(FakeModel())  # type: ignore[arg-type]
        self.started = 0

    def prepare(self, work: Path) -> None:
        if self.broken == "prepare":
            raise PeerFailed("no such wheel")

    def version(self) -> str:
        return f"{self.name} 1.0"

    def start(self, setting: Setting, folder: Path) -> Running:
        assert not FakePeer.alive, f"{self.name} was started while {FakePeer.alive} ran"
        if self.broken == "start":
            raise PeerFailed("it did not start: out of memory")
        self.started += 1
        if self.broken == "interrupted" and self.started > 1:
            raise KeyboardInterrupt
        FakePeer.alive.append(self.name)
        return _FakeRunning(self, folder)


class _FakeRunning(Running):
    def __init__(self, peer: FakePeer, folder: Path) -> None:
        self._peer = peer
        self._twin = Twin()
        self._evaluated = 0
        self.folder = folder

    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        peer = self._peer
        if peer.broken == "answer":
            return Answer(wall=0.01, error="status 500: a bug")
        prompt = peer.prompter.prompt(messages)
        if peer.remembers == "nothing":
            self._twin = Twin()
        n = self._twin.evaluated(prompt)
        if peer.remembers == "last":
            self._twin = Twin()
        text = " ok" * reply
        self._twin.read(prompt + peer.prompter.text(text)[:-1])
        self._evaluated += n
        ttft = peer.slow * (0.002 + n / FakeClock.prefill)
        arrivals = [ttft + peer.slow * i / FakeClock.decode for i in range(reply)]
        told: dict[str, Any] = {"prompt_tokens": len(prompt), "evaluated": n} if peer.tells else {}
        return Answer(
            text,
            arrivals,
            arrivals[-1],
            prompt_seconds=n / FakeClock.prefill,
            completion_tokens=reply,
            **told,
        )

    def counted(self) -> int | None:
        return self._evaluated if self._peer.tells else None

    def cache_ram(self) -> int | None:
        return 24_000 * self._twin.distinct

    def rss(self) -> int | None:
        return 10**8 + 25_000 * self._twin.distinct

    def stop(self) -> None:
        FakePeer.alive.remove(self._peer.name)


class Asked:
    """A stage that writes down what is asked, and answers one and the same."""

    def __init__(self) -> None:
        self.asks: list[Ask | str] = []

    def ask(self, ask: Ask) -> str:
        self.asks.append(ask)
        return "ok " * ask.reply

    def together(self, asks: Sequence[Ask]) -> list[str]:
        return [self.ask(ask) for ask in asks]

    def restart(self) -> None:
        self.asks.append("restart")
