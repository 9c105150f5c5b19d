"""``onceread models``: the models on this machine, what is in them, and more of them from the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from onceread.cli.errors import CommandError

app = typer.Typer(
    help="Find, download and inspect models: GGUF files, wherever other programs put them.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs")]
Folders = Optional[list[Path]]  # noqa: UP045 - typer reads these at run time


@app.command("ls")
def list_models(
    folders: Annotated[Folders, typer.Argument(metavar="[FOLDER]...", help="more folders to look in")] = None,
    context: Annotated[
        int, typer.Option("--context", metavar="N", help="tokens of context that should fit", min=1)
    ] = 8192,
    as_json: Json = False,
) -> None:
    """List the models of the Hugging Face cache, LM Studio, Ollama, our own folder and those given.

    What stands under `model` is what `--model` takes.
    """
    from onceread.cli.machine import free_memory
    from onceread.cli.models_tables import print_models, show_models
    from onceread.models.catalog import catalog
    from onceread.models.home import expanded
    from onceread.models.places import find_all

    for folder in folders or ():
        if not os.path.isdir(expanded(folder)):  # noqa: PTH112 - False also where it can't be looked at
            raise CommandError(f"there is no folder {folder}")
    records = list(catalog(find_all([expanded(folder) for folder in folders or ()])))
    free = free_memory()
    if as_json:
        print_models(records, context, free)
    else:
        show_models(records, context, free)


@app.command("pull")
def pull_model(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="org/repo:quant, or org/repo:file.gguf", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Download a model from the Hugging Face Hub into its cache, and verify it.

    Broken off, it goes on where it stopped when it is called again. HF_TOKEN is for private and gated models,
    HF_ENDPOINT for another hub, HF_HUB_CACHE for another place.
    """
    from onceread.cli.models_pull import pull_and_show

    pull_and_show(reference, as_json=as_json)


@app.command("inspect")
def inspect_model(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="a GGUF file, or a name of ls", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show what a model is: metadata, chat template, and how it remembers its prompt."""
    from onceread.cli.models_inspect import inspect, show

    found = inspect(model)
    if as_json:
        from onceread.cli.models_tables import print_json

        print_json(found)
    else:
        show(found)
