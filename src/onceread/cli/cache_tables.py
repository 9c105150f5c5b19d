"""How `onceread cache` shows what it found: tables for people, tabs for programs, JSON for whoever wants it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceread.server.cache_schemas import Overview, PathBody, PathList, PinBody, TierBody

if TYPE_CHECKING:
    from onceread.cli.cache_directory import DirectoryUse

_SHORT_ID = 8
_MIB = 1024 * 1024
_REST = (
    *("unwritten_bytes", "oldest_unwritten_s", "exported_chunks", "refused_chunks", "split_chunks"),
    *("exported_checkpoints", "refused_checkpoints"),
)
_TIER_NAMES = {"memory": "RAM", "disk": "disk", "shared": "shared"}


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    if isinstance(value, BaseModel):
        plain: Any = value.model_dump()
    elif isinstance(value, dict):
        plain = value
    else:
        plain = [one.model_dump() for one in value]
    print(json.dumps(plain, indent=2))  # noqa: T201


def print_tabs(rows: Iterable[Sequence[object]]) -> None:
    for row in rows:
        print("\t".join(clean(str(cell)) for cell in row))  # noqa: T201


def show_paths(console: Console, found: PathList, now: float | None = None) -> None:
    """One line a path; a heading for each model if there are several."""
    if not console.is_terminal:
        print_tabs(_path_row(path) for path in found.paths)
        return
    if not found.paths:
        console.print("Nothing is stored yet.")
        return
    now = time.time() if now is None else now
    by_model: dict[str, list[PathBody]] = {}
    for path in found.paths:
        by_model.setdefault(path.model, []).append(path)
    with_tiers = any(path.tiers != ["disk"] for path in found.paths)
    for model, paths in by_model.items():
        console.print(Text(clean(model), style="bold", overflow="ellipsis", no_wrap=True))
        console.print(_path_table(paths, now, with_tiers))
    pinned = any(path.pins for path in found.paths)
    shown = len(found.paths)
    of = f"{shown} of {found.total} paths" if shown < found.total else _count(found.total, "path")
    console.print(Text(of + ("; * is pinned" if pinned else ""), style="dim"))


def show_pins(console: Console, pins: Sequence[PinBody], now: float | None = None) -> None:
    if not console.is_terminal:
        print_tabs((pin.id, pin.name, pin.tokens, pin.bytes, pin.created) for pin in pins)
        return
    if not pins:
        console.print("Nothing is pinned.")
        return
    now = time.time() if now is None else now
    table = _table("id", ">tokens", ">MiB", "since", "name")
    for pin in pins:
        cells = (pin.id[:_SHORT_ID], f"{pin.tokens:,}", _mib(pin.bytes), ago(_seconds(pin.created), now))
        table.add_row(*map(Text, cells), Text(clean(pin.name)))
    console.print(table)


def show_overview(console: Console, found: Overview) -> None:
    """A running server's cache in numbers."""
    tiers = {name: tier for name, tier in _tiers(found) if name != "shared" or tier.state != "off"}
    if not console.is_terminal:
        for name, tier in tiers.items():
            print_tabs((f"{name}.{field}", value) for field, value in tier.model_dump().items())
        print_tabs((f"context.{field}", value) for field, value in found.context.model_dump().items())
        by_source = found.prompt_tokens.by_source.model_dump()
        print_tabs([("prompt_tokens.total", found.prompt_tokens.total)])
        print_tabs([("prompt_tokens.evaluated", found.prompt_tokens.evaluated)])
        print_tabs((f"prompt_tokens.{source}", value) for source, value in by_source.items())
        print_tabs((field, getattr(found, field)) for field in _REST)
        return
    table = _table("tier", ">MiB", ">of", ">pinned", ">tokens", ">hits", ">evicted", "state")
    for name, tier in tiers.items():
        table.add_row(
            Text(_TIER_NAMES[name]),
            Text(_mib(tier.bytes)),
            Text(_mib(tier.budget_bytes)),
            Text(_mib(tier.pinned_bytes)),
            Text(f"{tier.tokens:,}"),
            Text(f"{tier.hit_rate:.0%}"),
            Text(f"{tier.evictions:,}"),
            Text(clean(tier.state)),
        )
    console.print(table)
    prompt = found.prompt_tokens
    lines = [
        f"context  {found.context.used:,} of {found.context.cells:,} cells used, "
        f"{found.context.residents} finished sequences kept",
        f"prompts  {prompt.total:,} tokens, of which {prompt.evaluated:,} were computed",
    ]
    lines += [
        f"{_TIER_NAMES[name]} has {_count(tier.checkpoints, 'checkpoint')} of {_mib(tier.checkpoint_bytes)} MiB"
        for name, tier in tiers.items()
        if tier.checkpoints
    ]
    if found.refused_checkpoints:
        lines.append(f"refused  {_count(found.refused_checkpoints, 'checkpoint')}, for lack of room in RAM")
    if found.unwritten_bytes:
        lines.append(f"unwritten  {_mib(found.unwritten_bytes)} MiB, for {found.oldest_unwritten_s:.1f} s")
    if found.detail:
        lines.append(f"There is no cache behind the context: {clean(found.detail)}.")
    for line in lines:
        console.print(Text(line))


def show_directory(console: Console, use: DirectoryUse, now: float | None = None) -> None:
    """A cache directory in numbers."""
    if not console.is_terminal:
        print_tabs((field, value) for field, value in use.model_dump(exclude={"models"}).items())
        for model in use.models:
            print_tabs([("model", *model.model_dump().values())])
        return
    now = time.time() if now is None else now
    of = f" of {size(use.budget_bytes)}" if use.budget_bytes else ""
    pinned = f", {size(use.pinned_bytes)} pinned" if use.pinned_bytes else ""
    console.print(Text(f"{size(use.bytes)}{of}{pinned} in {clean(use.directory)}"))
    console.print(Text(f"{_count(use.chunks, 'chunk')} of {_count(use.tokens, 'token')}"))
    if use.checkpoints:
        console.print(Text(f"{_count(use.checkpoints, 'checkpoint')} of {size(use.checkpoint_bytes)}"))
    if use.models:
        table = _table(">MiB", ">tokens", ">chunks", ">last used", "model")
        for model in use.models:
            cells = (
                _mib(model.bytes),
                f"{model.tokens:,}",
                f"{model.chunks:,}",
                ago(_seconds(model.last_used), now),
                clean(model.model),
            )
            table.add_row(*map(Text, cells))
        console.print(table)


def size(n: int) -> str:
    """Bytes, for people."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def ago(then: float, now: float) -> str:
    """How long ago, roughly."""
    seconds = max(0.0, now - then)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now"


def clean(text: str) -> str:
    """Text of prompts, made harmless for a terminal and fit for one line."""
    return " ".join("".join([c if c.isprintable() else " " for c in text]).split())


def _path_table(paths: Sequence[PathBody], now: float, with_tiers: bool) -> Table:
    tiers = ("in",) if with_tiers else ()
    table = _table("id", ">tokens", ">own", *tiers, ">MiB", ">last used", ">hits", "text")
    for path in paths:
        cells = [
            path.id[:_SHORT_ID] + ("*" if path.pins else ""),
            f"{path.tokens:,}",
            f"{path.own_tokens:,}",
            *(["+".join(_TIER_NAMES.get(tier, clean(tier)) for tier in path.tiers)] if with_tiers else []),
            _mib(max(path.bytes_memory, path.bytes_disk)),
            ago(_seconds(path.last_used), now),
            f"{path.hits:,}",
            clean(path.text) or clean(path.tail),
        ]
        table.add_row(*map(Text, cells))
    return table


def _path_row(path: PathBody) -> tuple[object, ...]:
    return (
        path.id,
        path.tokens,
        path.own_tokens,
        ",".join(path.tiers),
        path.bytes_memory,
        path.bytes_disk,
        path.last_used,
        path.hits,
        ",".join(path.pins),
        path.model,
        path.text,
    )


def _table(*columns: str) -> Table:
    """``>`` before a name: numbers, to the right. The last column takes what is left of the line."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=False)
    for name in columns[:-1]:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    table.add_column(columns[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    table.expand = True
    return table


def _tiers(found: Overview) -> list[tuple[str, TierBody]]:
    return [("memory", found.tiers.memory), ("disk", found.tiers.disk), ("shared", found.tiers.shared)]


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _mib(n: int) -> str:
    mib = n / _MIB
    return f"{mib:.1f}" if 0 < mib < 100 else f"{mib:,.0f}"


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()
