"""What the benchmark wants of a server: how to start it, ask it, and read what a request cost."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from onceread.bench.machine import memory_of, size_of_folder
from onceread.bench.workloads.contract import Message

GREEDY = {"temperature": 0.0}
FlashAttention = Literal["auto", "on", "off"]  # auto: what a server takes by itself


class PeerFailed(Exception):
    """A peer can't be set up or started. The message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all servers of one run have alike."""

    model: Path
    ctx: int  # cells of the whole context
    threads: int
    parallel: int
    batch: int  # tokens of one decode, at most
    eog: tuple[int, ...]  # tokens that end a reply; forbidden, so that all replies are equally long
    extra_buffers: bool  # may llama.cpp repack weights for special instructions?
    flash_attn: FlashAttention = "auto"

    def shown(self) -> dict[str, Any]:
        """For the report."""
        flash = "as each has it" if self.flash_attn == "auto" else self.flash_attn
        return {
            "model": self.model.name, "ctx": self.ctx, "threads": self.threads, "parallel": self.parallel,
            "batch": self.batch, "flash attention": flash, "sampling": "greedy",
        }  # fmt: skip


@dataclass(slots=True)
class Answer:
    """One reply. Times are of the client's clock, in seconds since the request was sent."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)  # of each piece of text
    wall: float = 0.0
    prompt_tokens: int | None = None
    evaluated: int | None = None  # prompt tokens that were computed, as the server says
    prompt_seconds: float | None = None  # in which it did so, as it says
    completion_tokens: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] if self.arrivals else None


class Running(ABC):
    """A server that is up."""

    pid: int | None = None
    folder: Path | None = None  # where it keeps what survives it

    @abstractmethod
    def answer(self, messages: Sequence[Message], reply: int) -> Answer:
        """Ask and wait. Thread-safe. Never raises: what goes wrong is the answer's error."""

    def counted(self) -> int | None:
        """Prompt tokens computed since the start, by the server's own counter; None if it has none."""
        return None

    def settled(self, timeout: float = 10.0) -> bool:
        """Wait until the server has done what follows a reply; before memory is measured."""
        return True

    def cache_ram(self) -> int | None:
        """Bytes of states kept in RAM beside the context, if it tells."""
        return None

    def cache_disk(self) -> int | None:
        """Bytes in its folder."""
        return size_of_folder(self.folder) if self.folder is not None else None

    def rss(self) -> int | None:
        return memory_of(self.pid) if self.pid is not None else None

    @abstractmethod
    def stop(self) -> None:
        """End it as its operator would, and wait until it is gone."""


class Peer(ABC):
    """A server that can be measured."""

    name: str
    about: str
    approximate = False  # it may answer from states of other positions
    restarts = True

    def prepare(self, work: Path) -> None:  # noqa: B027
        """Make what it needs below ``work``; quick when it is there. Raises PeerFailed."""

    @abstractmethod
    def version(self) -> str:
        """What it is, in a line. Called after prepare()."""

    @abstractmethod
    def start(self, setting: Setting, folder: Path) -> Running:
        """Start it with ``folder`` for what is to survive a restart. Returns when it is ready. Raises PeerFailed."""


class Stopwatch:
    """Fills an answer's times."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._began = time.perf_counter()

    def piece(self, text: str) -> None:
        if text:
            self.answer.arrivals.append(time.perf_counter() - self._began)
            self.answer.text += text

    def done(self, error: str | None = None) -> Answer:
        self.answer.wall = time.perf_counter() - self._began
        self.answer.error = error
        return self.answer
