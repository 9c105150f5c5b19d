"""What ``onceread bench`` does once its options are read."""

from __future__ import annotations

import shlex
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs
import typer

from onceread.bench.estimate import estimated
from onceread.bench.peers import PEERS, QUICK, find_peers
from onceread.bench.peers.contract import FlashAttention, Peer, Setting
from onceread.bench.peers.onceread import Onceread
from onceread.bench.peers.url import Url
from onceread.bench.report import write_report
from onceread.bench.runner import Plan, run_benchmark
from onceread.bench.workloads import load_workloads
from onceread.bench.workloads.contract import Workload
from onceread.cli.errors import CommandError
from onceread.engine.config import default_threads
from onceread.native.backend import extra_buffers_safe
from onceread.native.model import Model

PARALLEL = 4  # llama-server's own default, and ours
BATCH = 512
_ROOM = 4 * 2**30  # bytes that must be free below --work


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options."""

    scale: Literal["full", "quick"]
    model: Path
    peers: list[str] | None
    variants: list[str] | None
    workloads: list[str] | None
    url: str | None
    url_model: str
    key: str | None
    passes: int
    minutes: float
    ctx: int
    threads: int | None
    flash_attn: FlashAttention
    work: Path | None
    command: str


def run(wanted: Wanted, out: Path) -> None:
    """Measure and write the report. Raises CommandError."""
    workloads, peers = _what(wanted)
    check_folder(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: no server is left, a report is
    work = wanted.work or Path(platformdirs.user_cache_dir("onceread")) / "bench"
    work.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(work).free) < _ROOM:
        raise CommandError(
            f"{work} has {free / 2**30:.1f} GiB free and {_ROOM / 2**30:.0f} are needed; see --work"
        )
    plan = Plan(peers, workloads, wanted.passes, wanted.minutes, work.resolve(), wanted.command)
    with Model.load(wanted.model) as model:
        results = run_benchmark(plan, _setting(wanted, model), model, typer.echo)
    if not results.runs:
        raise CommandError("nothing was measured: " + "; ".join(results.skipped))
    typer.echo(write_report(results, out))


def check_folder(folder: Path) -> None:
    """Raises CommandError where no report could be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise CommandError(f"--out {folder}: {error.strerror}") from None


def estimate_run(wanted: Wanted) -> str:
    """What it would take, as a table. Raises CommandError."""
    workloads, _peers = _what(wanted)
    with Model.load(wanted.model) as model:
        return estimated(workloads, model, wanted.passes)


def _what(wanted: Wanted) -> tuple[list[Workload], list[Peer]]:
    default = [] if wanted.url else QUICK if wanted.scale == "quick" else list(PEERS)
    try:
        workloads = load_workloads(wanted.scale, wanted.workloads)
        peers = find_peers(list(wanted.peers or default))
        peers += [Onceread(*shlex.split(options)) for options in wanted.variants or ()]
        if wanted.url:
            peers.append(Url(wanted.url, model=wanted.url_model, key=wanted.key))
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(str(error)) from None
    return workloads, peers


def _setting(wanted: Wanted, model: Model) -> Setting:
    return Setting(
        model=wanted.model.resolve(),
        ctx=wanted.ctx,
        threads=wanted.threads or default_threads(),
        parallel=PARALLEL,
        batch=BATCH,
        eog=tuple(sorted(model.vocab.eog_tokens)),
        extra_buffers=extra_buffers_safe(),
        flash_attn=wanted.flash_attn,
    )
