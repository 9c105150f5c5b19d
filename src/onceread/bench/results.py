"""What a run of the benchmark found, as it is kept: one JSON file, from which every table and plot is made."""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceread.bench.machine import Load

_NAMES = ("results.json", "results.json.gz")
SCHEMA = 1


class ResultsUnreadable(Exception):
    """A file that holds no results. The message is one line."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Seconds and bytes; None is what a server does not tell."""

    label: str
    conversation: str
    at_once: int  # requests that were sent together with it, itself included
    ttft: float | None
    wall: float
    gaps: tuple[float, ...]  # between pieces of text
    prompt: int | None
    evaluated: int | None
    ideal: int | None  # the naive twin's
    ideal_prompt: int | None  # tokens of the prompt, by the model's own template
    prompt_seconds: float | None  # in which the server computed it, as it says
    completion: int
    rss: int | None
    cache_ram: int | None
    cache_disk: int | None
    distinct: int | None  # tokens of all that was read by then, what is common counted once
    text: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One workload played once on one peer."""

    workload: str
    peer: str
    turn: int  # which pass
    samples: tuple[Sample, ...]
    start_seconds: float
    restart_seconds: float
    wall: float  # of the requests alone
    counted: int | None  # prompt tokens computed, by the server's own counter
    rss_ready: int | None
    rss_peak: int | None
    cache_ram: int | None  # at the end
    cache_disk: int | None
    distinct: int | None
    load: Load
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One reply held against a fresh context of our own engine's."""

    workload: str
    peer: str
    label: str
    tokens: int  # that were compared
    reused: int | None  # prompt tokens that the peer had not computed
    gap: float  # how far below the best token's logit the chosen one was, at worst


@dataclass
class Results:
    """Everything."""

    when: str
    command: str
    minutes: float
    machine: dict[str, str]
    setting: dict[str, Any]
    corpus: str
    bytes_per_token: float | None  # of a state, as the model has it
    noise: float | None  # of cold logits among themselves
    peers: dict[str, dict[str, Any]]  # name: about, version, approximate
    workloads: dict[str, dict[str, Any]]  # name: kind, about, sizes
    runs: list[Run] = field(default_factory=list)
    judged: list[Judgement] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # what there was no time for, in words
    schema: int = SCHEMA

    def of(self, workload: str, peer: str) -> list[Run]:
        """All passes of one workload on one peer that went through."""
        return [r for r in self.runs if r.workload == workload and r.peer == peer and r.error is None]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")


def load_results(path: Path) -> Results:
    """Read a results file, be it gzipped, or the one in a folder. Raises ResultsUnreadable."""
    file = path
    if path.is_dir():
        file = next((f for f in map(path.joinpath, _NAMES) if f.exists()), path / _NAMES[0])
    try:
        content = file.read_bytes()
        data = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
        if not isinstance(data, dict):
            raise ResultsUnreadable(f"{file} holds no results of a benchmark")
        if data.get("schema") != SCHEMA:
            raise ResultsUnreadable(f"{file}: results of another format ({data.get('schema')}, not {SCHEMA})")
        data["runs"] = [_run(run) for run in data["runs"]]
        data["judged"] = [Judgement(**one) for one in data["judged"]]
        return Results(**data)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsUnreadable(f"{file} holds no results of a benchmark: {error}") from None
    except OSError as error:
        raise ResultsUnreadable(f"{file}: {error.strerror}") from None


def _run(data: dict[str, Any]) -> Run:
    samples = tuple(Sample(**{**s, "gaps": tuple(s["gaps"])}) for s in data.pop("samples"))
    return Run(**{**data, "samples": samples, "load": Load(**data["load"])})
