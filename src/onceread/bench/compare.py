"""Two runs side by side: what became faster, what slower, and what reads more than before."""

from __future__ import annotations

from collections.abc import Iterator

from onceread.bench.figures import Spread, figures
from onceread.bench.results import Results

_TELLING = 1.1  # times; below that two runs of one and the same program differ


def compared(a: Results, b: Results) -> str:
    """Markdown: for each workload and peer of both, how B does against A."""
    return "\n".join(_lines(a, b)) + "\n"


def _lines(a: Results, b: Results) -> Iterator[str]:
    yield f"A: {a.when}, `{a.command}`"
    yield f"B: {b.when}, `{b.command}`"
    for what, was, now in (
        ("machines", a.machine, b.machine),
        ("settings", a.setting, b.setting),
        ("texts", a.corpus, b.corpus),
    ):
        if was != now:
            yield f"The {what} differ: times and tokens can't be compared without a thought."
    for peer in (peer for peer in a.peers if peer in b.peers):
        if a.peers[peer]["version"] != b.peers[peer]["version"]:
            yield f"{peer}: {a.peers[peer]['version']} in A, {b.peers[peer]['version']} in B"
    yield ""
    yield "| workload | peer | first token p95 ms, A | B | B / A | | evaluated A | B | tokens/s A | B |"
    yield "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for workload in (w for w in a.workloads if w in b.workloads):
        if a.workloads[workload] != b.workloads[workload]:
            yield f"| {workload} | | | | | other sizes | | | | |"
            continue
        for peer in (peer for peer in a.peers if peer in b.peers):
            one, other = figures(a, workload, peer), figures(b, workload, peer)
            if one is None or other is None:
                continue
            ratio, word = _verdict(one.ttft_p95, other.ttft_p95)
            if one.disturbed or other.disturbed:
                word = f"{word} (disturbed)".strip()
            cells = [
                workload, peer, _shown(one.ttft_p95, 1000), _shown(other.ttft_p95, 1000), ratio, word,
                _shown(one.evaluated), _shown(other.evaluated), _shown(one.rate, 1, 1), _shown(other.rate, 1, 1),
            ]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def _verdict(a: Spread | None, b: Spread | None) -> tuple[str, str]:
    """The ratio, and a word where it is more than chance: the spreads don't touch, and it is a tenth or more."""
    if a is None or b is None or not a.median:
        return "–", ""
    ratio = b.median / a.median
    word = ""
    if ratio > _TELLING and b.low > a.high:
        word = "slower"
    elif ratio < 1 / _TELLING and b.high < a.low:
        word = "faster"
    return f"{ratio:.2f}", word


def _shown(spread: Spread | None, factor: float = 1.0, digits: int = 0) -> str:
    return "–" if spread is None else f"{spread.median * factor:,.{digits}f}"
