"""From single requests to the figures of the tables: quantiles of a pass, medians over passes and their spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onceread.bench.results import Results, Run, Sample


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some passes, the least and the most."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None if there are none."""
        there = sorted(v for v in values if v is not None)
        return cls(statistics.median(there), there[0], there[-1], len(there)) if there else None


@dataclass(frozen=True, slots=True)
class Figures:
    """One workload on one peer. Seconds, tokens, bytes."""

    passes: int
    ttft_p50: Spread | None
    ttft_p95: Spread | None
    known_p95: (
        Spread | None
    )  # of requests at least half of whose prompt was read before; of all if there are none
    gap_p50: Spread | None  # between two pieces of text: a token, mostly
    gap_p95: Spread | None
    rate: Spread | None  # tokens written a second, of all streams, reading included
    wall: Spread | None
    evaluated: Spread | None
    ideal: Spread | None
    rss: Spread | None
    cache_ram: Spread | None
    cache_disk: Spread | None
    errors: int
    disturbed: int  # passes in which others took CPU time


def figures(results: Results, workload: str, peer: str) -> Figures | None:
    """None if no pass went through."""
    runs = results.of(workload, peer)
    if not runs:
        return None

    def over(value: Callable[[Run], float | None]) -> Spread | None:
        return Spread.of(value(run) for run in runs)

    return Figures(
        passes=len(runs),
        ttft_p50=over(lambda run: quantile(ttfts(run), 0.5)),
        ttft_p95=over(lambda run: quantile(ttfts(run), 0.95)),
        known_p95=over(lambda run: quantile(ttfts(run, known=True), 0.95)),
        gap_p50=over(lambda run: quantile([g for s in run.samples for g in s.gaps], 0.5)),
        gap_p95=over(lambda run: quantile([g for s in run.samples for g in s.gaps], 0.95)),
        rate=over(lambda run: sum(s.completion for s in run.samples) / run.wall if run.wall else None),
        wall=over(lambda run: run.wall),
        evaluated=over(evaluated),
        ideal=over(lambda run: total(s.ideal for s in run.samples)),
        rss=over(lambda run: run.rss_peak),
        cache_ram=over(lambda run: run.cache_ram),
        cache_disk=over(lambda run: run.cache_disk),
        errors=sum(s.error is not None for run in runs for s in run.samples),
        disturbed=sum(run.load.disturbed for run in runs),
    )


def evaluated(run: Run) -> int | None:
    """Prompt tokens computed: as the replies say, else as the server counted."""
    said = total(s.evaluated for s in run.samples)
    return run.counted if said is None else said


def ttfts(run: Run, *, known: bool = False) -> list[float]:
    """Times to the first token; ``known``: of the requests at least half of whose prompt somebody had read before."""
    samples = [s for s in run.samples if s.ttft is not None]
    some = [s for s in samples if s.ideal is not None and s.ideal_prompt and s.ideal <= s.ideal_prompt / 2]
    return [s.ttft for s in (some if known and some else samples) if s.ttft is not None]


def total(values: Iterable[int | None]) -> int | None:
    """The sum; None where one is missing."""
    summed = 0
    for value in values:
        if value is None:
            return None
        summed += value
    return summed


def quantile(values: Sequence[float], share: float) -> float | None:
    """By the nearest rank, so that it is one of the values; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def by_label(results: Results, workload: str, peer: str) -> dict[str, list[Sample]]:
    """The samples of all passes by what kind of request they are, in the order of the first pass."""
    found: dict[str, list[Sample]] = {}
    for run in results.of(workload, peer):
        for sample in run.samples:
            found.setdefault(sample.label, []).append(sample)
    return found


def median_of(samples: Iterable[Sample], value: Callable[[Sample], float | None]) -> float | None:
    there = [v for v in map(value, samples) if v is not None]
    return statistics.median(there) if there else None


def decode_rate(sample: Sample) -> float | None:
    """Tokens a second from the first piece of text to the last."""
    span = sum(sample.gaps)
    return (sample.completion - 1) / span if span and sample.completion > 1 else None


def prefill_rate(sample: Sample) -> float | None:
    """Prompt tokens a second up to the first piece of text, of a prompt that is new as a whole."""
    return sample.ideal_prompt / sample.ttft if sample.ideal_prompt and sample.ttft else None
