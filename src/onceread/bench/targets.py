"""The ratios that the project promises, each from what was measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onceread.bench.figures import (
    by_label,
    decode_rate,
    evaluated,
    figures,
    median_of,
    prefill_rate,
    quantile,
    ttfts,
)
from onceread.bench.results import Results, Sample

OURS = "onceread"
NATIVE = "llama-server"
BINDING = "binding"
# What is compared in speed: each as it comes, then both without and both with flash attention.
_SPEEDS_OF = (
    (OURS, NATIVE),
    (OURS, "llama-server-fa-off"),
    ("onceread-fa-on", NATIVE),
    (OURS, BINDING),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A promise, and what came of it."""

    what: str
    measured: float
    bound: float
    at_least: bool  # else at most

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def targets(results: Results) -> list[Target]:
    """All that can be told from what was played."""
    found = [*_warm(results), *_needed(results), *_first_tokens(results), *_speed(results)]
    return [*found, *_streams(results), *_bytes(results)]


def _warm(results: Results) -> Iterator[Target]:
    labels = by_label(results, "cold-prompt", OURS)
    cold = _ttft(labels.get("cold"))
    for label, where, bound in (
        ("next turn", "the context", 1 / 20),
        ("next turn, others since", "context or RAM, others since", 1 / 20),
        ("next turn, after a restart", "disk, after a restart", 1 / 15),
    ):
        warm = _ttft(labels.get(label))
        if cold and warm:
            yield Target(
                f"first token of a known prompt, from {where}: of cold", warm / cold, bound, at_least=False
            )


def _needed(results: Results) -> Iterator[Target]:
    needed = prefill_seconds(results)
    if needed is None:
        return
    for workload in results.workloads:
        ratios = []
        for run in results.of(workload, OURS):
            least = [
                needed(s.ideal, (s.ideal_prompt or 0) - s.ideal)
                for s in run.samples
                if s.ideal is not None and s.at_once == 1
            ]
            measured = quantile([s.ttft for s in run.samples if s.ttft is not None and s.at_once == 1], 0.95)
            if least and measured is not None:
                ratios.append(measured / (quantile(least, 0.95) or 1))
        if ratios:
            yield Target(
                f"{workload}: p95 first token, of what computing the new tokens takes",
                float(np.median(ratios)), 1.25, at_least=False,
            )  # fmt: skip


def prefill_seconds(results: Results) -> Callable[[int, int], float] | None:
    """What our engine needs for n new tokens behind a depth, by its own clock: fixed + a n + b n (depth + n/2).

    Fitted to all requests of the run that were alone. None if there were too few.
    """
    rows, seconds = [], []
    for run in results.runs:
        if run.peer != OURS or run.error:
            continue
        for s in run.samples:
            if s.prompt_seconds and s.evaluated and s.prompt and s.at_once == 1:
                n, depth = s.evaluated, s.prompt - s.evaluated
                # Weighted by the time, so that the many short ones are fitted as well as the few long.
                rows.append(np.array([1.0, n, n * (depth + n / 2)]) / s.prompt_seconds)
                seconds.append(1.0)
    if len(rows) < 12:
        return None
    fixed, per_token, per_pair = _non_negative(np.array(rows), np.array(seconds))
    return lambda n, depth: float(fixed + per_token * n + per_pair * n * (depth + n / 2))


def _non_negative(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least squares without negative terms: those that would be are left out."""
    columns = list(range(rows.shape[1]))
    while True:
        solution = np.linalg.lstsq(rows[:, columns], values, rcond=None)[0]
        if (solution >= 0).all() or len(columns) == 1:
            full = np.zeros(rows.shape[1])
            full[columns] = np.maximum(solution, 0)
            return full
        del columns[int(np.argmin(solution))]


def _first_tokens(results: Results) -> Iterator[Target]:
    for workload in results.workloads:
        ours, theirs = figures(results, workload, OURS), figures(results, workload, NATIVE)
        if not (ours and theirs and ours.ttft_p95 and theirs.ttft_p95):
            continue
        ratio = ours.ttft_p95.median / theirs.ttft_p95.median
        rereads = _worst_reread(results, workload)
        if rereads is not None and rereads[1] >= 10:
            label, times = rereads
            a, b = (_ttft(by_label(results, workload, peer).get(label)) for peer in (OURS, NATIVE))
            if a and b:
                what = f"{workload}, {label}: first token, of {NATIVE}'s, which reads {times:.0f} times the new tokens"
                yield Target(what, a / b, 1 / 5, at_least=False)
        yield Target(f"{workload}: p95 first token, of {NATIVE}'s", ratio, 1.1, at_least=False)


def _worst_reread(results: Results, workload: str) -> tuple[str, float] | None:
    """The kind of request at which llama-server reads most, in times of what is new."""
    found = []
    for label, samples in by_label(results, workload, NATIVE).items():
        if times := median_of(samples, lambda s: s.evaluated / s.ideal if s.evaluated and s.ideal else None):
            found.append((label, times))
    return max(found, key=lambda one: one[1], default=None)


def _speed(results: Results) -> Iterator[Target]:
    rows: tuple[tuple[str, str, str, Callable[[Sample], float | None]], ...] = (
        ("decode", "decode, fresh", "decode, fresh", decode_rate),
        ("decode", "decode, after others", "decode, after 30 other conversations", decode_rate),
        ("decode", "prefill, fresh", "prefill, fresh", prefill_rate),
        ("decode", "prefill, after others", "prefill, after 30 other conversations", prefill_rate),
        ("cold-prompt", "cold", "prefill of the long prompt", prefill_rate),
    )
    for ours, theirs in _SPEEDS_OF:
        for workload, label, what, value in rows:
            a, b = (
                median_of(by_label(results, workload, peer).get(label, ()), value) for peer in (ours, theirs)
            )
            if a and b:
                whose = f"{ours} of {theirs}" if ours != OURS else f"of {theirs}'s"
                yield Target(f"{what}: tokens a second, {whose}", a / b, 0.97, at_least=True)


def _streams(results: Results) -> Iterator[Target]:
    ours, theirs = figures(results, "concurrent", OURS), figures(results, "concurrent", NATIVE)
    if ours and theirs and ours.rate and theirs.rate:
        what = f"streams at once: tokens a second in all, of {NATIVE}'s"
        yield Target(what, ours.rate.median / theirs.rate.median, 1.0, at_least=True)


def _bytes(results: Results) -> Iterator[Target]:
    if not results.bytes_per_token:
        return
    for workload in ("shared-system", "rotation", "agent"):
        for run in results.of(workload, OURS)[-1:]:
            if run.cache_ram and run.distinct:
                ratio = run.cache_ram / (run.distinct * results.bytes_per_token)
                yield Target(
                    f"{workload}: bytes in RAM, of the distinct tokens'", ratio, 1.15, at_least=False
                )


def _ttft(samples: list[Sample] | None) -> float | None:
    return median_of(samples or (), lambda s: s.ttft)


def times_read(results: Results, workload: str, peer: str) -> float | None:
    """Tokens evaluated, in times of the ideal: the median over passes."""
    ratios = []
    for run in results.of(workload, peer):
        ideal = sum(s.ideal or 0 for s in run.samples)
        if (n := evaluated(run)) is not None and ideal and ttfts(run):
            ratios.append(n / ideal)
    return float(np.median(ratios)) if ratios else None
