"""The command ``onceread``: its subcommands, its version, and how errors leave it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Annotated

import typer

from onceread import __version__
from onceread.cli import bench, cache, models
from onceread.cli.chat import chat
from onceread.cli.complete import complete
from onceread.cli.doctor.command import doctor
from onceread.cli.errors import CommandError, one_line
from onceread.cli.serve import serve

app = typer.Typer(
    name="onceread",
    help="A local LLM server over llama.cpp that reads every prompt once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve)
app.command("chat")(chat)
app.command("complete")(complete)
app.add_typer(models.app, name="models")
app.add_typer(cache.app, name="cache")
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            binding = importlib.metadata.version("llama-cpp-python")
        except importlib.metadata.PackageNotFoundError:
            binding = "not installed"
        typer.echo(f"onceread {__version__} (llama-cpp-python {binding})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Errors with a known cause are one line on stderr and exit status 1."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # whoever started it has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - to the process's end
    try:
        app(prog_name="onceread")
    except CommandError as error:
        print(f"onceread: {one_line(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
