"""How `onceread models ls` shows models: a table for people, tabs for programs, JSON for whoever wants it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceread.cli.errors import printable
from onceread.cli.model_file import gib
from onceread.models.catalog import Record

_RAW = re.compile("[\x7f-\x9f\ud800-\udfff]")


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON leaves some characters as they are that a terminal obeys, or that UTF-8 has no form for.
    print(_RAW.sub(lambda c: f"\\u{ord(c[0]):04x}", text))  # noqa: T201


def as_dict(record: Record, context: int, free: int) -> dict[str, Any]:
    """One model, for JSON. Sizes in bytes; what can't be said is null."""
    needed = record.needed_bytes(context)
    return {
        "name": record.name,
        "place": record.place,
        "paths": [str(path) for path in record.paths],
        "title": record.title,
        "architecture": record.architecture,
        "quantization": record.quantization,
        "tensor_types": record.tensor_types,
        "size_bytes": record.size_bytes,
        "parameters": record.parameters,
        "context_length": record.context_length,
        "needed_bytes": needed,
        "fits": None if needed is None or record.problem else needed <= free,
        "problem": record.problem,
    }


def print_models(records: Sequence[Record], context: int, free: int) -> None:
    print_json(
        {
            "context": context,
            "free_bytes": free,
            "models": [as_dict(record, context, free) for record in records],
        }
    )


def show_models(records: Sequence[Record], context: int, free: int, console: Console | None = None) -> None:
    """A line a model. Piped, with tabs: name, architecture, quantization, bytes, parameters, fits, place, path."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        for record in records:
            one = as_dict(record, context, free)
            fits = record.problem or {True: "yes", False: "no", None: ""}[one["fits"]]
            cells = [record.name, record.architecture or "", record.quantization or "", record.size_bytes]
            cells += [record.parameters or "", fits, record.place, record.paths[0]]
            print("\t".join(printable(str(cell)) for cell in cells))  # noqa: T201
        return
    if not records:
        console.print(
            "There are no models here yet. onceread models pull org/repo:quant gets one from the Hugging Face Hub."
        )
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("model", overflow="fold", ratio=1)
    for name in ("architecture", "quant"):
        table.add_column(name, no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("weights", justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    place = None
    for record in sorted(records, key=lambda one: one.place):  # stable: in order within a place
        if record.place != place:
            place = record.place
            table.add_row(Text(printable(place), style="bold"))
        table.add_row(
            Text(printable(record.name)),
            Text(printable(record.architecture or "?")),
            Text(printable(record.quantization or "?")),
            gib(record.size_bytes),
            _count(record.parameters),
            _fits(record, context, free),
        )
    console.print(table)
    for record in records:
        if record.problem:
            console.print(Text(printable(f"{record.name}: {record.problem}"), style="red"))
    console.print(
        Text(f"fits: with a context of {context:,} tokens in the {gib(free)} that are free now", style="dim")
    )


def _fits(record: Record, context: int, free: int) -> Text:
    needed = record.needed_bytes(context)
    if record.problem or needed is None:
        return Text("broken", style="red")
    if needed <= free:
        return Text("yes", style="green")
    return Text(f"no, needs {gib(needed)}", style="yellow")


def _count(parameters: int | None) -> str:
    if not parameters:
        return "?"
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
