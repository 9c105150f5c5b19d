"""The report: what was measured, as Markdown, with the plots beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onceread.bench.cold import is_right
from onceread.bench.figures import (
    Figures,
    Spread,
    by_label,
    decode_rate,
    figures,
    median_of,
    prefill_rate,
    total,
)
from onceread.bench.results import Results, Sample
from onceread.bench.targets import OURS, targets, times_read

MISSING = "–"


def write_report(results: Results, folder: Path) -> Path:
    """``results.json``, ``report.md`` and the plots in ``folder``. Returns the report's path."""
    from onceread.bench.plots import draw

    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "results.json")
    plots = draw(results, folder)
    report = folder / "report.md"
    report.write_text(markdown(results, plots), encoding="utf-8")
    return report


def markdown(results: Results, plots: Sequence[str] = ()) -> str:
    """The whole report."""
    parts = [
        *_head(results),
        *_overview(results),
        *_speeds(results),
        *_promises(results),
        *(f"![{name.replace('-', ' ')}]({name}.svg)\n" for name in plots),
        *(part for workload in results.workloads for part in _workload(results, workload)),
        *_judged(results),
        *_notes(results),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _head(results: Results) -> Iterator[str]:
    yield "# Benchmark\n"
    yield f"- command: `{results.command}`, {results.when}"
    yield f"- machine: {', '.join(f'{k} {v}' for k, v in results.machine.items())}"
    yield f"- the same for all: {', '.join(f'{k} {v}' for k, v in results.setting.items())}"
    yield f"- texts: the standard library's documentation and source, {results.corpus}"
    for name, peer in results.peers.items():
        yield f"- **{name}**: {peer['about']}. {_features(peer['version'])}"
    yield ""


def _features(version: str) -> str:
    """llama.cpp's line on what it was built for, ``AVX = 1 | ...``, with the names alone."""
    what, found, system = version.partition(": ")
    names = re.findall(r"(\w+) = 1", system)
    return f"{what}: {' '.join(names)}" if found and names else version


def _overview(results: Results) -> Iterator[str]:
    peers = list(results.peers)
    yield "## Time to the first token of prompts that were known, and tokens read\n"
    yield (
        "Of the requests at least half of whose prompt was read before (of all where there are none): p95 in "
        "milliseconds, the median of the passes. Behind it how many prompt tokens the whole workload computed, in "
        "times of those that were new. Fewest milliseconds in bold. † disturbed, ✗ errors, ≈ approximate by design.\n"
    )
    whole = [peer for peer in peers if 2 * _played(results, peer) > len(results.workloads)]
    some = [peer for peer in peers if peer not in whole]
    yield from _first_tokens(results, list(results.workloads), whole)
    others = [peer for peer in whole if peer != OURS]
    if OURS in whole and others:
        yield f"The same times, {OURS}'s as a part of each peer's:\n"
        yield from _parts(results, others)
    if some:
        yield "Those that play only some of the workloads:\n"
        theirs = [w for w in results.workloads if any(results.of(w, peer) for peer in some)]
        yield from _first_tokens(results, theirs, some)


def _played(results: Results, peer: str) -> int:
    return sum(bool(results.of(workload, peer)) for workload in results.workloads)


def _first_tokens(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> Iterator[str]:
    yield _row(["workload", *peers])
    yield _row(["---", *["---:"] * len(peers)])
    for workload in workloads:
        found = {peer: figures(results, workload, peer) for peer in results.peers}
        best = min((f.known_p95.median for f in found.values() if f and f.known_p95), default=0.0)
        yield _row([workload, *(_cell(results, workload, peer, found[peer], best) for peer in peers)])
    yield ""


def _parts(results: Results, others: Sequence[str]) -> Iterator[str]:
    yield _row(["workload", *others])
    yield _row(["---", *["---:"] * len(others)])
    for workload in results.workloads:
        ours = figures(results, workload, OURS)
        if ours is None or ours.known_p95 is None:
            continue
        cells = []
        for peer in others:
            theirs = figures(results, workload, peer)
            there = theirs is not None and theirs.known_p95 is not None and theirs.known_p95.median
            cells.append(f"{ours.known_p95.median / there:.2f}" if there else MISSING)
        yield _row([workload, *cells])
    yield ""


def _cell(results: Results, workload: str, peer: str, found: Figures | None, best: float) -> str:
    if found is None or found.known_p95 is None:
        return MISSING
    time = f"{1000 * found.known_p95.median:,.0f}"
    if found.known_p95.median <= best:
        time = f"**{time}**"
    read = times_read(results, workload, peer)
    marks = ("†" if found.disturbed else "") + ("✗" if found.errors else "")
    approximate = "≈" if results.peers[peer]["approximate"] else ""
    return f"{time}{marks} · {approximate}{MISSING if read is None else f'{read:.2f}×'}"


def _speeds(results: Results) -> Iterator[str]:
    """How fast each reads and writes: median of all passes, and from where to where."""
    rows: list[tuple[str, str, str, Callable[[Sample], float | None]]] = [
        ("write, one stream, fresh", "decode", "decode, fresh", decode_rate),
        ("write, after 30 other conversations", "decode", "decode, after others", decode_rate),
        ("read a new prompt, fresh", "decode", "prefill, fresh", prefill_rate),
        ("read a new prompt, after 30 other conversations", "decode", "prefill, after others", prefill_rate),
        ("read a long new prompt", "cold-prompt", "cold", prefill_rate),
    ]
    cells = {
        (what, peer): Spread.of(map(value, by_label(results, workload, peer).get(label, ())))
        for what, workload, label, value in rows
        for peer in results.peers
    }
    if not any(cells.values()):
        return
    peers = [peer for peer in results.peers if any(cells[what, peer] for what, *_ in rows)]
    yield "## Tokens a second\n"
    yield _row(["", *peers])
    yield _row(["---", *["---:"] * len(peers)])
    for what, *_ in rows:
        yield _row([what, *(_spread(cells[what, peer], 1, 1) for peer in peers)])
    yield ""


def _promises(results: Results) -> Iterator[str]:
    found = targets(results)
    if not found:
        return
    met = sum(target.met for target in found)
    yield f"## What is promised: {met} of {len(found)} kept\n"
    yield _row(["promise", "measured", "bound", ""])
    yield _row(["---", "---:", "---:", "---"])
    for target in found:
        sign = "≥" if target.at_least else "≤"
        kept = "kept" if target.met else "**missed**"
        yield _row([target.what, f"{target.measured:.3f}", f"{sign} {target.bound:.3f}", kept])
    yield ""


def _workload(results: Results, workload: str) -> Iterator[str]:
    told = results.workloads[workload]
    found = {peer: f for peer in results.peers if (f := figures(results, workload, peer))}
    if not found:
        return
    sizes = ", ".join(f"{k} {v}" for k, v in told["sizes"].items())
    yield f"## {workload}\n"
    yield f"{told['about']} ({sizes})\n"
    head = ["peer", "n", "first token p50 ms", "p95 ms", "gap p50 ms", "p95 ms", "tokens/s", "wall s"]
    yield _row(head)
    yield _row(["---", *["---:"] * (len(head) - 1)])
    for peer, f in found.items():
        yield _row(
            [
                peer + (" †" if f.disturbed else ""), f"{f.passes}",
                _spread(f.ttft_p50, 1000), _spread(f.ttft_p95, 1000),
                _spread(f.gap_p50, 1000, 1), _spread(f.gap_p95, 1000, 1), _spread(f.rate, 1, 1), _spread(f.wall, 1, 1),
            ]
        )  # fmt: skip
    yield ""
    head = ["peer", "tokens evaluated", "ideal", "RSS MiB", "states in RAM MiB", "on disk MiB", "errors"]
    yield _row(head)
    yield _row(["---", *["---:"] * (len(head) - 1)])
    for peer, f in found.items():
        yield _row(
            [
                peer, _median(f.evaluated), _median(f.ideal), _median(f.rss, 2**-20), _median(f.cache_ram, 2**-20),
                _median(f.cache_disk, 2**-20), f"{f.errors or ''}",
            ]
        )  # fmt: skip
    yield ""
    yield from _labels(results, workload, list(found))


def _labels(results: Results, workload: str, peers: list[str]) -> Iterator[str]:
    """The median first token of each kind of request."""
    by_peer = {peer: by_label(results, workload, peer) for peer in peers}
    labels = list(dict.fromkeys(label for found in by_peer.values() for label in found))
    if len(labels) < 2:
        return
    yield "First token by kind of request, median ms, and tokens evaluated:\n"
    yield _row(["request", *peers, "ideal"])
    yield _row(["---", *["---:"] * (len(peers) + 1)])
    for label in labels:
        cells = []
        for peer in peers:
            samples = by_peer[peer].get(label, [])
            seconds, tokens = median_of(samples, lambda s: s.ttft), median_of(samples, lambda s: s.evaluated)
            cells.append(f"{_number(seconds, 1000)} · {_number(tokens)}")
        some = by_peer[OURS if OURS in by_peer else peers[0]].get(label, [])
        yield _row([label, *cells, _number(median_of(some, lambda s: s.ideal))])
    yield ""


def _judged(results: Results) -> Iterator[str]:
    if not results.judged or results.noise is None:
        return
    yield "## Are the replies right?\n"
    yield (
        "Of each workload and server the reply that reused most, token by token against a fresh context: how far "
        "below the likeliest token the chosen one was, at worst, in logits. Cold readings differ from each other by "
        f"{results.noise:.2f}; up to twice that is right, a wrong state is off by several times as much "
        "(≈ where it is by design).\n"
    )
    workloads = [w for w in results.workloads if any(j.workload == w for j in results.judged)]
    yield _row(["workload", *results.peers])
    yield _row(["---", *["---:"] * len(results.peers)])
    gaps = {(j.workload, j.peer): j.gap for j in results.judged}
    for workload in workloads:
        cells = []
        for peer in results.peers:
            gap = gaps.get((workload, peer))
            text = MISSING if gap is None else f"{gap:.2f}"
            if gap is not None and not is_right(gap, results.noise):
                text = f"{text} ≈" if results.peers[peer]["approximate"] else f"**{text} wrong**"
            cells.append(text)
        yield _row([workload, *cells])
    yield ""


def _notes(results: Results) -> Iterator[str]:
    disturbed = [run for run in results.runs if run.load.disturbed]
    failed = [run for run in results.runs if run.error]
    counted = [
        (run, said)
        for run in results.runs
        if (said := total(s.evaluated for s in run.samples)) is not None and run.counted not in (None, said)
    ]
    if not (disturbed or failed or counted or results.skipped):
        return
    yield "## Notes\n"
    for run in disturbed:
        yield (
            f"- {run.workload} on {run.peer}, pass {run.turn + 1}, was disturbed: {run.load.foreign:.1f} CPU seconds "
            f"of other work in {run.load.wall:.0f} s"
        )
    for run, said in counted:
        yield (
            f"- {run.workload} on {run.peer}, pass {run.turn + 1}: the replies say that {said:,} prompt tokens were "
            f"computed, its own counter {run.counted:,}"
        )
    for run in failed:
        yield f"- {run.workload} on {run.peer}, pass {run.turn + 1}, failed: {run.error}"
    for line in results.skipped:
        yield f"- left out: {line}"
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, factor: float = 1.0, digits: int = 0) -> str:
    return MISSING if value is None else f"{value * factor:,.{digits}f}"


def _median(spread: Spread | None, factor: float = 1.0) -> str:
    return MISSING if spread is None else _number(spread.median, factor)


def _spread(spread: Spread | None, factor: float = 1.0, digits: int = 0) -> str:
    """The median, and in brackets from where to where, if there is more than one."""
    if spread is None:
        return MISSING
    median = _number(spread.median, factor, digits)
    if spread.n == 1:
        return median
    return f"{median} ({_number(spread.low, factor, digits)}–{_number(spread.high, factor, digits)})"
