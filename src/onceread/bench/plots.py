"""The report's pictures, as SVG and PNG: on a light card, which reads on light and on dark pages alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceread.bench.figures import figures
from onceread.bench.results import Results, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart also by those who don't see red and green.
COLOURS = {
    "onceread": "#0072B2", "onceread-moved": "#56B4E9", "llama-server": "#D55E00", "llama-server-tuned": "#E69F00",
    "binding-server-ram": "#009E73", "binding-server-disk": "#7A5195", "binding": "#CC79A7",
}  # fmt: skip
_OTHERS = ("#444444", "#888888", "#B8860B")
_INK, _FAINT, _CARD = "#1F2328", "#D0D7DE", "#FFFFFF"
_BY_TURN = ("chat-growth", "rotation", "restart", "shared-system", "timestamp", "agent")


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what there are figures for. Returns the pictures' names, without their endings."""
    import matplotlib as mpl

    mpl.use("agg")
    made = []
    with mpl.rc_context(_style()):  # type: ignore[arg-type]
        for name, picture in (
            ("first-token-by-turn", _by_turn),
            ("evaluated-against-ideal", _against_ideal),
            ("bytes-against-conversations", _bytes),
        ):
            figure = picture(results)
            if figure is not None:
                _save(figure, folder / name)
                made.append(name)
    return made


def _style() -> dict[str, Any]:
    return {
        "figure.facecolor": _CARD, "axes.facecolor": _CARD, "savefig.facecolor": _CARD, "text.color": _INK,
        "axes.labelcolor": _INK, "axes.edgecolor": _FAINT, "xtick.color": _INK, "ytick.color": _INK,
        "axes.grid": True, "grid.color": _FAINT, "grid.linewidth": 0.6, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titlesize": 11,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "svg.fonttype": "path",
        "svg.hashsalt": "onceread",
    }  # fmt: skip


def _save(figure: Figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)
    plt.close(figure)


def _colour(results: Results, peer: str) -> str:
    others = [name for name in results.peers if name not in COLOURS]
    return COLOURS.get(peer) or _OTHERS[others.index(peer) % len(_OTHERS)]


def _by_turn(results: Results) -> Figure | None:
    """Time to the first token of each request, in their order."""
    import matplotlib.pyplot as plt

    shown = [w for w in _BY_TURN if w in results.workloads and any(results.of(w, p) for p in results.peers)]
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(5.2 * columns, 0.9 + 2.9 * rows), squeeze=False, layout="constrained"
    )
    for axes, workload in zip(grid.flat, shown, strict=False):
        for peer in reversed(results.peers):  # the first, ours, on top of the others
            runs = results.of(workload, peer)
            if runs:
                _turns(axes, runs, _colour(results, peer), peer)
        axes.set_title(workload)
        axes.set_yscale("log")
        axes.set_xlabel("request")
        axes.set_ylabel("first token, s")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_formatter(_seconds)
        axes.yaxis.set_minor_formatter(
            lambda value, _position: _seconds(value) if _leading(value) in "25" else ""
        )
        axes.grid(visible=True, which="minor", axis="y", linewidth=0.3)
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    _legend(figure, results, shown)
    return figure


def _seconds(value: float, _position: object = None) -> str:
    return f"{value:g}"


def _leading(value: float) -> str:
    return f"{value:e}"[0]


def _turns(axes: Axes, runs: Sequence[Run], colour: str, name: str) -> None:
    import statistics

    n = min(len(run.samples) for run in runs)
    points = [(i, [run.samples[i].ttft for run in runs]) for i in range(n)]
    there = [(i + 1, [t for t in times if t is not None]) for i, times in points]
    there = [(i, times) for i, times in there if times]
    axes.plot(
        [i for i, _ in there], [statistics.median(times) for _, times in there],
        color=colour, marker="o", markersize=3.5, linewidth=1.5, label=name,
    )  # fmt: skip


def _legend(figure: Figure, results: Results, workloads: Sequence[str]) -> None:
    """Whoever is in the picture."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_colour(results, peer), marker="o", markersize=4, label=peer)
        for peer in results.peers
        if any(results.of(workload, peer) for workload in workloads)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))


def _against_ideal(results: Results) -> Figure | None:
    """Bars: prompt tokens computed, workload by workload; a stroke where the ideal is."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    found = {w: {p: figures(results, w, p) for p in results.peers} for w in results.workloads}
    shown = [
        w for w, by_peer in found.items() if any(f and f.evaluated and f.ideal for f in by_peer.values())
    ]
    if not shown:
        return None
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    tall = 0.55 + 0.12 * len(results.peers)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 1.1 + tall * rows), squeeze=False, layout="constrained"
    )
    for axes, workload in zip(grid.flat, shown, strict=False):
        by_peer = [(p, f) for p, f in found[workload].items() if f and f.evaluated]
        for row, (peer, f) in enumerate(by_peer):
            assert f.evaluated is not None
            axes.barh(row, f.evaluated.median, 0.85, color=_colour(results, peer))
        ideal = [f.ideal.median for _, f in by_peer if f.ideal]
        axes.axvline(sum(ideal) / len(ideal), color=_INK, linewidth=1.4)
        axes.set_title(workload)
        axes.set_yticks([])
        axes.set_ylim(len(by_peer) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    figure.supxlabel(
        "prompt tokens computed; the upright strokes are the ideal, the tokens that were new", fontsize=10
    )
    _legend(figure, results, shown)
    return figure


def _bytes(results: Results) -> Figure | None:
    """What conversations take: RAM beyond a server that has just started, and what is on disk."""
    import matplotlib.pyplot as plt

    workload = next((w for w in ("shared-system", "rotation") if w in results.workloads), None)
    if workload is None:
        return None
    runs = {p: results.of(workload, p)[-1] for p in results.peers if results.of(workload, p)}
    if not runs:
        return None
    figure, (ram, disk) = plt.subplots(1, 2, figsize=(10.4, 3.8), layout="constrained")
    for peer, run in reversed(runs.items()):
        colour = _colour(results, peer)
        if run.rss_ready is not None:
            _conversations(ram, run, [_beyond(s.rss, run.rss_ready) for s in run.samples], colour)
        if any(s.cache_disk for s in run.samples):
            _conversations(disk, run, [s.cache_disk for s in run.samples], colour)
    some = next(iter(runs.values()))
    if results.bytes_per_token:
        least = [
            s.distinct * results.bytes_per_token if s.distinct is not None else None for s in some.samples
        ]
        for axes in (ram, disk):
            _conversations(axes, some, least, _INK, dashed=True)
    ram.set_title("RAM, beyond what the server had at its start")
    disk.set_title("Disk")
    for axes in (ram, disk):
        axes.set_ylabel("MiB")
        axes.set_xlabel("conversations")
        axes.xaxis.get_major_locator().set_params(integer=True)
    # What some keep is a hundred times what others do.
    ram.set_yscale("log")
    ram.yaxis.set_major_formatter(lambda value, _position: f"{value:,g}")
    disk.set_ylim(bottom=0)
    figure.supxlabel(f"{workload}; dashed: the states of the distinct tokens, once each", fontsize=10)
    _legend(figure, results, [workload])
    return figure


def _beyond(now: int | None, before: int) -> float | None:
    return None if now is None else max(0, now - before)


def _conversations(
    axes: Axes, run: Run, values: Sequence[float | None], colour: str, *, dashed: bool = False
) -> None:
    """``values`` after each first request of a conversation."""
    seen: set[str] = set()
    points: list[tuple[int, float]] = []
    for sample, value in zip(run.samples, values, strict=True):
        if sample.conversation not in seen:
            seen.add(sample.conversation)
            if value is not None:
                points.append((len(seen), value / 2**20))
    style = (
        {"linestyle": "--", "linewidth": 1.2}
        if dashed
        else {"marker": "o", "markersize": 3.5, "linewidth": 1.5}
    )
    axes.plot([x for x, _ in points], [y for _, y in points], color=colour, **style)  # type: ignore[arg-type]
