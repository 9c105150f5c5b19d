"""``onceread bench``: the same conversations against Onceread and other servers; see docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from onceread.cli.errors import CommandError
from onceread.cli.model_file import find_model

app = typer.Typer(
    help="Measure this server against its peers, with the same conversations, in one run.",
    invoke_without_command=True,
)

Text = Optional[str]  # noqa: UP045 - typer reads these at run time
Texts = Optional[list[str]]  # noqa: UP045
Number = Optional[int]  # noqa: UP045
File = Optional[Path]  # noqa: UP045
Minutes = Optional[float]  # noqa: UP045

_MINUTES = {"full": 60.0, "quick": 5.0}


@app.callback()
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="three workloads, ours and llama-server, 5 minutes")
    ] = False,
    model: Annotated[
        File, typer.Option("--model", metavar="FILE", help="GGUF file (default: the demo model)")
    ] = None,
    peer: Annotated[
        Texts, typer.Option("--peer", metavar="NAME", help="only this one; may be repeated")
    ] = None,
    variant: Annotated[
        Texts,
        typer.Option(
            "--variant",
            metavar="OPTIONS",
            help='ours with these options, too: --variant "--cache-type-k q8_0"',
        ),
    ] = None,
    workload: Annotated[
        Texts, typer.Option("--workload", metavar="NAME", help="only this one; may be repeated")
    ] = None,
    url: Annotated[
        Text, typer.Option("--url", metavar="URL", help="a server that runs already, besides or alone")
    ] = None,
    url_model: Annotated[
        str, typer.Option("--url-model", metavar="NAME", help="the model's name there")
    ] = "default",
    key: Annotated[
        Text,
        typer.Option(
            "--key", metavar="SECRET", help="its API key", envvar="ONCEREAD_BENCH_KEY", show_envvar=False
        ),
    ] = None,
    passes: Annotated[
        Number, typer.Option("--passes", metavar="N", help="of workloads under 30 s", min=1)
    ] = None,
    minutes: Annotated[
        Minutes, typer.Option("--minutes", help="at most, set-up not counted", min=0.1)
    ] = None,
    ctx_size: Annotated[
        int, typer.Option("--ctx-size", metavar="N", help="tokens, for all servers", min=512)
    ] = 8192,
    threads: Annotated[Number, typer.Option("--threads", metavar="N", help="for all servers", min=1)] = None,
    flash_attn: Annotated[
        Literal["auto", "on", "off"],
        typer.Option("--flash-attn", help="for all servers; auto leaves it to each of them"),
    ] = "auto",
    work: Annotated[
        File, typer.Option("--work", metavar="DIR", help="for peers' environments (default: a cache)")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="for the report")] = Path("bench-results"),
    estimate: Annotated[bool, typer.Option("--estimate", help="only say what it would take")] = False,
) -> None:
    """Play all workloads on all peers and write report.md, plots and results.json into --out."""
    if context.invoked_subcommand is not None:
        return
    _needs("yaml", "matplotlib")
    from onceread.cli.bench_run import Wanted, estimate_run, run

    scale: Literal["quick", "full"] = "quick" if quick else "full"
    wanted = Wanted(
        scale=scale,
        model=find_model(model),
        peers=peer,
        variants=variant,
        workloads=workload,
        url=url,
        url_model=url_model,
        key=key,
        passes=passes or (2 if quick else 3),
        minutes=minutes or _MINUTES[scale],
        ctx=ctx_size,
        threads=threads,
        flash_attn=flash_attn,
        work=work,
        command=" ".join(["onceread", *sys.argv[1:]]).replace(key or "\0", "KEY"),
    )
    if estimate:
        typer.echo(estimate_run(wanted))
    else:
        run(wanted, out)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="results.json or its folder")],
    b: Annotated[Path, typer.Argument(metavar="B", help="the later one")],
) -> None:
    """Show how B does against A."""
    from onceread.bench.compare import compared
    from onceread.bench.results import ResultsUnreadable, load_results

    try:
        typer.echo(compared(load_results(a), load_results(b)), nl=False)
    except ResultsUnreadable as error:
        raise CommandError(str(error)) from None


@app.command("report")
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="results.json or its folder")],
    out: Annotated[File, typer.Option("--out", metavar="DIR", help="default: where the results are")] = None,
) -> None:
    """Write the report and the plots of kept results again."""
    _needs("matplotlib")
    from onceread.bench.report import write_report
    from onceread.bench.results import ResultsUnreadable, load_results
    from onceread.cli.bench_run import check_folder

    try:
        found = load_results(results)
    except ResultsUnreadable as error:
        raise CommandError(str(error)) from None
    folder = out or (results if results.is_dir() else results.parent)
    check_folder(folder)
    typer.echo(write_report(found, folder))


@app.command("scale")
def scale(
    conversations: Annotated[int, typer.Option("--conversations", min=10)] = 10_000,
    seed: Annotated[int, typer.Option("--seed")] = 1,
) -> None:
    """Simulate a node's cache under many conversations: hit rates, bytes, and when disk or RAM is outgrown."""
    from onceread.bench.scaling import Traffic, scaled

    typer.echo(scaled(Traffic(conversations=conversations, seed=seed), typer.echo), nl=False)


def _needs(*modules: str) -> None:
    """Raises CommandError where the extra is not installed."""
    from importlib.util import find_spec

    if missing := [name for name in modules if find_spec(name) is None]:
        raise CommandError(f"the benchmark needs {missing[0]}: pip install 'onceread[bench]'")
