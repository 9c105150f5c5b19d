"""Stages: a live one that asks a server and notes everything, and a dry one that only counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from onceread.bench.machine import LoadMeter
from onceread.bench.peers.contract import Answer, Peer, Running, Setting
from onceread.bench.results import Run, Sample
from onceread.bench.twin import Prompter, Twin
from onceread.bench.workloads.contract import Ask, Writer


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply that may be judged: what was asked, and what came."""

    ask: Ask
    text: str
    reused: int | None


@dataclass
class LiveStage:
    """Plays on one peer, alone on the machine. Use it as a context manager: it starts and stops the server."""

    peer: Peer
    setting: Setting
    folder: Path
    prompter: Prompter | None  # None where the model's file is not at hand
    samples: list[Sample] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    restart_seconds: float = 0.0
    wall: float = 0.0

    def __enter__(self) -> LiveStage:
        self._twin = Twin()
        self._counted = 0
        self._meter = LoadMeter()
        began = time.perf_counter()
        self._server: Running = self.peer.start(self.setting, self.folder)
        self.start_seconds = time.perf_counter() - began
        self._meter.started(self._server.pid)
        self._before = self._server.counted() or 0  # one that was up already counted others, too
        self.rss_ready = self._server.rss()
        return self

    def __exit__(self, *raised: object) -> None:
        self._meter.ending(self._server.pid)
        self._server.stop()

    def ask(self, ask: Ask) -> str:
        return self.together([ask])[0]

    def together(self, asks: Sequence[Ask]) -> list[str]:
        began = time.perf_counter()
        if len(asks) == 1:
            answers = [self._server.answer(asks[0].messages, asks[0].reply)]
        else:
            with ThreadPoolExecutor(len(asks)) as pool:
                answers = list(pool.map(lambda ask: self._server.answer(ask.messages, ask.reply), asks))
        self.wall += time.perf_counter() - began
        for ask, answer in zip(asks, answers, strict=True):
            self._note(ask, answer, len(asks))
        return [answer.text for answer in answers]

    def restart(self) -> None:
        if not self.peer.restarts:
            return
        began = time.perf_counter()
        self._counted += (self._server.counted() or 0) - self._before
        self._before = 0
        self._meter.ending(self._server.pid)
        self._server.stop()
        self._server = self.peer.start(self.setting, self.folder)
        self._meter.started(self._server.pid)
        self.restart_seconds += time.perf_counter() - began

    def run(self, workload: str, turn: int) -> Run:
        """What happened, when the workload is over and the server still up."""
        load = self._meter.load()
        self._server.settled()
        counted = self._server.counted()
        return Run(
            workload=workload,
            peer=self.peer.name,
            turn=turn,
            samples=tuple(self.samples),
            start_seconds=self.start_seconds,
            restart_seconds=self.restart_seconds,
            wall=self.wall,
            counted=None if counted is None else self._counted + counted - self._before,
            rss_ready=self.rss_ready,
            rss_peak=max((s.rss for s in self.samples if s.rss is not None), default=None),
            cache_ram=self._server.cache_ram(),
            cache_disk=self._server.cache_disk(),
            distinct=self._twin.distinct if self.prompter is not None else None,
            load=load,
        )

    def _note(self, ask: Ask, answer: Answer, at_once: int) -> None:
        ideal = ideal_prompt = None
        if self.prompter is not None:
            prompt = self.prompter.prompt(ask.messages)
            ideal_prompt, ideal = len(prompt), self._twin.evaluated(prompt)
            # A reply's last token is sampled and not computed: nobody needs what would come after it.
            self._twin.read(prompt + self.prompter.text(answer.text)[:-1])
        arrivals = answer.arrivals
        reused = None
        if answer.prompt_tokens is not None and answer.evaluated is not None:
            reused = answer.prompt_tokens - answer.evaluated
        if answer.error is None:
            self.candidates.append(Candidate(ask, answer.text, reused))
        self.samples.append(
            Sample(
                label=ask.label,
                conversation=ask.conversation,
                at_once=at_once,
                ttft=answer.ttft,
                wall=answer.wall,
                gaps=tuple(round(b - a, 6) for a, b in pairwise(arrivals)),
                prompt=answer.prompt_tokens,
                evaluated=answer.evaluated,
                ideal=ideal,
                ideal_prompt=ideal_prompt,
                prompt_seconds=answer.prompt_seconds,
                completion=answer.completion_tokens or len(arrivals),
                rss=self._server.rss(),
                cache_ram=self._server.cache_ram(),
                cache_disk=self._server.cache_disk(),
                distinct=self._twin.distinct if self.prompter is not None else None,
                text=answer.text,
                error=answer.error,
            )
        )


@dataclass
class DryStage:
    """Counts what servers would have to compute, with replies out of the same texts."""

    prompter: Prompter
    write: Writer
    requests: int = 0
    prompts: int = 0  # tokens of all prompts: what a server computes that remembers nothing
    ideal: int = 0
    last: int = 0  # what one computes that knows its last conversation only, and forgets it at a restart
    completion: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        self._twin, self._only = Twin(), Twin()

    def ask(self, ask: Ask) -> str:
        prompt = self.prompter.prompt(ask.messages)
        text = self.write.prose(ask.reply)
        reply = self.prompter.text(text)[:-1]
        self.requests += 1
        self.prompts += len(prompt)
        self.ideal += self._twin.evaluated(prompt)
        self.last += self._only.evaluated(prompt)
        self.completion += ask.reply
        self._twin.read(prompt + reply)
        self._only = Twin()
        self._only.read(prompt + reply)
        return text

    def together(self, asks: Sequence[Ask]) -> list[str]:
        return [self.ask(ask) for ask in asks]

    def restart(self) -> None:
        self.restarts += 1
        self._only = Twin()
