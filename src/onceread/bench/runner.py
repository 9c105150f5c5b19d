"""Plays all workloads on all peers, one server at a time, in turns, within a limit of time."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceread.bench.cold import ColdReference
from onceread.bench.figures import evaluated
from onceread.bench.machine import Load, describe
from onceread.bench.peers import ONLY
from onceread.bench.peers.contract import Peer, PeerFailed, Setting
from onceread.bench.results import Judgement, Results, Run
from onceread.bench.stage import Candidate, LiveStage
from onceread.bench.texts import standard_library
from onceread.bench.twin import Prompter
from onceread.bench.workloads.contract import Workload, seeded

if TYPE_CHECKING:
    from onceread.native.model import Model

SHORT = 30.0  # seconds up to which a workload is played in every pass
_JUDGING = 0.1  # of the time is kept for the cold reference
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done."""

    peers: Sequence[Peer]
    workloads: Sequence[Workload]
    passes: int
    minutes: float
    work: Path
    command: str


def run_benchmark(plan: Plan, setting: Setting, model: Model | None, say: Say) -> Results:
    """Do it. A peer that can't be had, and what there is no time for, is left out and said so.

    ``model`` is the one that the servers load, for the ideal and the cold reference; without it neither is known.
    """
    prompter = Prompter(model) if model is not None else None
    results = Results(
        when=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        command=plan.command,
        minutes=plan.minutes,
        machine=describe(),
        setting=setting.shown(),
        corpus=standard_library().digest,
        bytes_per_token=model.kv_bytes_per_token() if model is not None else None,
        noise=None,
        peers={},
        workloads={w.name: _shown(w) for w in plan.workloads},
    )
    peers = _prepared(plan, results, say)
    bench = _Bench(plan, setting, prompter, results, say)
    try:
        for turn in range(plan.passes):
            for i, workload in enumerate(plan.workloads):
                first = (turn + i) % len(peers) if peers else 0
                for peer in (*peers[first:], *peers[:first]):
                    bench.play(workload, peer, turn)
        if model is not None and prompter is not None:
            bench.judge(model, prompter)
    except KeyboardInterrupt:
        say("broken off; what was measured until now is reported")
        results.skipped.append("whatever came after it was broken off")
    return results


def _shown(workload: Workload) -> dict[str, object]:
    sizes = {k: v for k, v in dataclasses.asdict(workload).items() if k not in ("name", "about")}
    return {"kind": workload.kind, "about": workload.about, "sizes": sizes}


def _prepared(plan: Plan, results: Results, say: Say) -> list[Peer]:
    ready = []
    for peer in plan.peers:
        say(f"setting up {peer.name}")
        try:
            peer.prepare(plan.work)
            version = peer.version()
        except PeerFailed as error:
            say(f"{peer.name} is left out: {error}")
            results.skipped.append(f"{peer.name} in whole: {error}")
            continue
        results.peers[peer.name] = {
            "about": peer.about, "version": version, "approximate": peer.approximate,
        }  # fmt: skip
        ready.append(peer)
    return ready


class _Bench:
    def __init__(
        self, plan: Plan, setting: Setting, prompter: Prompter | None, results: Results, say: Say
    ) -> None:
        self._plan, self._setting, self._prompter, self._say = plan, setting, prompter, say
        self._results = results
        self._began = time.monotonic()
        self._end = self._began + 60 * plan.minutes * (1 - _JUDGING)
        self._judging_end = self._began + 60 * plan.minutes
        self._took: dict[tuple[str, str], float] = {}  # seconds of the last pass, set-up and all
        self._wall: dict[tuple[str, str], float] = {}  # of its requests
        self._candidates: dict[tuple[str, str], list[Candidate]] = {}

    def play(self, workload: Workload, peer: Peer, turn: int) -> None:
        """One workload on one peer, unless it is not to be, or there is no time."""
        cell = (workload.name, peer.name)
        if workload.name not in ONLY.get(peer.name, (workload.name,)):
            return
        if turn and (cell not in self._wall or self._wall[cell] > SHORT):
            return
        left = self._end - time.monotonic()
        if left < self._took.get(cell, 0.0):
            self._results.skipped.append(f"{workload.name} on {peer.name}, pass {turn + 1}: no time")
            return
        began = time.monotonic()
        run = self._once(workload, peer, turn)
        self._took[cell] = time.monotonic() - began
        if run.error is None:
            self._wall[cell] = run.wall
        self._results.runs.append(run)
        at = (time.monotonic() - self._began) / 60
        self._say(f"{at:5.1f} min  pass {turn + 1}  {workload.name} on {peer.name}: {_in_a_line(run)}")

    def _once(self, workload: Workload, peer: Peer, turn: int) -> Run:
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._plan.work))
        stage = LiveStage(peer, self._setting, folder, self._prompter)
        try:
            with stage:
                workload.play(stage, seeded(workload, standard_library()))
                run = stage.run(workload.name, turn)
            if turn == 0:
                self._candidates[workload.name, peer.name] = stage.candidates
            return run
        except PeerFailed as error:
            return _failed(workload, peer, turn, str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def judge(self, model: Model, prompter: Prompter) -> None:
        """Hold of each workload and peer the reply that reused most against a fresh context."""
        if not self._candidates:
            return
        self._say("holding replies against a fresh context")
        reference = ColdReference(model, prompter)
        try:
            some = next(iter(self._candidates.values()))
            if some:
                self._results.noise = reference.noise(prompter.prompt(some[-1].ask.messages)[-300:])
            for (workload, peer), candidates in self._candidates.items():
                if time.monotonic() > self._judging_end:
                    self._results.skipped.append(
                        f"the reply of {peer} in {workload} against a fresh context: no time"
                    )
                elif candidates:
                    best = max(candidates, key=lambda c: c.reused or 0)
                    gap, n = reference.gap(prompter.prompt(best.ask.messages), best.text)
                    if n:
                        self._results.judged.append(
                            Judgement(workload, peer, best.ask.label, n, best.reused, gap)
                        )
        finally:
            reference.close()


def _failed(workload: Workload, peer: Peer, turn: int, error: str) -> Run:
    return Run(
        workload.name, peer.name, turn, (), 0.0, 0.0, 0.0, None, None, None, None, None, None,
        Load(0.0, 0.0, 0.0, 0.0), error,
    )  # fmt: skip


def _in_a_line(run: Run) -> str:
    if run.error:
        return run.error
    ideal = sum(s.ideal or 0 for s in run.samples)
    said = f"{run.wall:.1f} s, {evaluated(run) or 0:,} tokens evaluated (ideal {ideal:,})"
    if errors := sum(s.error is not None for s in run.samples):
        said += f", {errors} errors"
    return said + (f", disturbed: {run.load.foreign:.1f} s of other work" if run.load.disturbed else "")
