"""`onceread models inspect`: what a model's file says, and what llama.cpp makes of it without its weights."""

from __future__ import annotations

import logging
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceread.cli.errors import CommandError, one_line, printable
from onceread.cli.model_file import find_named, gib
from onceread.models.catalog import Record, record
from onceread.models.errors import GgufInvalid
from onceread.models.gguf_header import Header, LongArray, read_header

_LONG = 300  # characters of a text that a table shows


def inspect(model: str) -> dict[str, Any]:
    """Everything there is to say, for JSON. Sizes in bytes. Raises CommandError."""
    found = find_named(model, "MODEL")
    try:
        header = read_header(found.path)
    except GgufInvalid as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{found.path} can't be read: {error.strerror}") from error
    one = record(found)
    return {
        "name": one.name,
        "paths": [str(path) for path in one.paths],
        "problem": one.problem,
        "title": one.title,
        "architecture": one.architecture,
        "quantization": one.quantization,
        "tensor_types": one.tensor_types,
        "size_bytes": one.size_bytes,
        "parameters": one.parameters,
        "context_length": one.context_length,
        "vocabulary": one.vocabulary,
        "memory": _memory(one),
        "can": _abilities(one),
        "chat_template": header.text("tokenizer.chat_template"),
        "metadata": _metadata(header),
    }


def _metadata(header: Header) -> dict[str, Any]:
    return {
        key: f"{value.length:,} of {value.kind}" if isinstance(value, LongArray) else value
        for key, value in sorted(header.metadata.items())
        if key != "tokenizer.chat_template"
    }


def _memory(one: Record) -> dict[str, Any] | None:
    state = one.state
    if state is None:
        return None
    return {
        "kind": state.kind,
        "bytes_per_token": state.per_token,
        "bytes_per_checkpoint": state.checkpoint,
        "window": state.window,
        "layers": {
            "attention": state.layers_full,
            "window": state.layers_windowed,
            "recurrent": state.layers_recurrent,
        },
        "estimate": state.is_estimate,
    }


def _abilities(one: Record) -> dict[str, Any]:
    """What can be done with its state: true, or why not. By llama.cpp; null where it can't be asked."""
    if one.problem:
        return {"serve": one.problem, "moved_reuse": None, "exact": None, "overflow_shift": None}
    from onceread.native.errors import NativeError

    logging.getLogger("onceread.llama").setLevel(logging.CRITICAL)  # what is wrong is in the exception
    try:
        from onceread.engine.config import EngineConfig
        from onceread.engine.errors import ExactUnavailable
        from onceread.engine.exact import exact_config
        from onceread.native.model import Model
        from onceread.native.shift import refusal

        with Model.load(one.paths[0], weights=False) as model:
            moved = refusal(model, "f16") or True
            try:
                exact_config(model, EngineConfig())
                exact: bool | str = True
            except ExactUnavailable as error:
                exact = one_line(error)
    except NativeError as error:
        return {"serve": one_line(error), "moved_reuse": None, "exact": None, "overflow_shift": None}
    # Dropping old turns is the chat's business and works with any memory; what is kept is moved or read again.
    return {"serve": True, "moved_reuse": moved, "exact": exact, "overflow_shift": True}


def show(found: dict[str, Any]) -> None:
    """For people. Everything from the file is shown as text, whatever is in it."""
    console = Console(highlight=False)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _lines(found):
        grid.add_row(label, Text(_lines_of(text)))
    console.print(grid)
    console.print()
    console.print(Text("metadata", style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    for key, value in found["metadata"].items():
        text = " ".join(printable(str(value)).split())
        table.add_row(Text(printable(key)), Text(text if len(text) <= _LONG else f"{text[:_LONG]}…"))
    console.print(table)
    console.print()
    console.print(Text("chat template", style="bold"))
    template = found["chat_template"]
    console.print(Text(_lines_of(template) if template else "none: the server uses ChatML"))


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    memory, can = found["memory"], found["can"]
    types = found["tensor_types"] or {}
    lines = [
        ("model", found["name"]),
        ("files", "\n".join(found["paths"])),
        ("title", found["title"] or "-"),
        ("architecture", found["architecture"] or "-"),
        (
            "quantization",
            f"{found['quantization'] or '?'} ("
            + ", ".join(f"{share:.0%} {name}" for name, share in types.items() if share >= 0.005)
            + ")",
        ),
        ("size", f"{gib(found['size_bytes'])}, {(found['parameters'] or 0) / 1e6:,.0f}M weights"),
        ("context", f"{found['context_length'] or 0:,} tokens trained, {found['vocabulary'] or 0:,} words"),
    ]
    if found["problem"]:
        lines.insert(0, ("problem", found["problem"]))
    if memory:
        sizes = [f"{memory['bytes_per_token']:,} bytes a token"] if memory["bytes_per_token"] else []
        if memory["bytes_per_checkpoint"]:
            sizes.append(f"{memory['bytes_per_checkpoint']:,} bytes a checkpoint")
        window = f" of {memory['window']:,} tokens" if memory["window"] else ""
        about = "about " if memory["estimate"] else ""
        lines += [
            ("memory", memory["kind"] + window),
            ("state", f"{about}{', '.join(sizes)} (f16)"),
        ]
    if can["serve"] is not True:
        return [*lines, ("can't be served", str(can["serve"]))]
    moved = can["moved_reuse"]
    return [
        *lines,
        ("moved reuse", "possible" if moved is True else f"not possible: {moved}"),
        ("exact mode", "possible" if can["exact"] is True else f"not possible: {can['exact']}"),
        (
            "context shift",
            "possible; what is kept is "
            + ("moved with --reuse-moved, else read again" if moved is True else "read again"),
        ),
    ]


def _lines_of(text: str) -> str:
    return "\n".join(printable(one) for one in text.split("\n"))
