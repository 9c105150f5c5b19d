"""In which order things are looked at, and how the findings are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from onceread.cli.doctor import build, cache, machine
from onceread.cli.doctor.finding import Finding, bad, ok
from onceread.cli.errors import CommandError, one_line
from onceread.cli.model_file import demo_model, find_named, gib
from onceread.models.catalog import Record, record
from onceread.models.places import at_path
from onceread.server.settings import Settings

_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "bad": ("bad ", "red")}


def examine(settings: Settings, *, speed: bool) -> Iterator[Finding]:
    """One finding after the other. What can't be looked at is a finding, too."""
    yield from _tried("Python", build.python)
    yield from _tried("compiler", build.compiler)
    binding = build.binding()
    yield binding
    built = binding.data.get("built")
    if built is not None:
        flags = build.cpu_flags()
        yield from _tried("CPU", lambda: build.cpu_features(flags, built))
        yield from _tried("AMX", lambda: build.amx(flags, built))
        yield from _tried("GPU", build.gpu)
    model, finding = model_file(settings)
    yield finding
    yield from _tried("memory", lambda: machine.memory(model if settings.gpu_layers == 0 else None))
    yield from _tried("container", machine.container)
    yield from _tried("processors", machine.processors)
    yield from _tried("limits", machine.open_files)
    yield from _tried("temporary files", machine.temporary)
    yield from _tried(
        "cache",
        lambda: cache.directory(
            settings.cache_dir, wanted=not settings.no_disk_cache, budget=settings.cache_disk
        ),
    )
    fits = model is not None and finding.state != "bad"
    if speed and built is not None and model is not None and fits:
        from onceread.cli.doctor.speed import speed as measure

        path = model.paths[0]
        yield from _tried("speed", lambda: measure(path, settings.gpu_layers))


def _tried(name: str, look: Callable[[], Finding | list[Finding] | None]) -> Iterator[Finding]:
    try:
        found = look()
    except Exception as error:  # noqa: BLE001 - the doctor goes on whatever the patient does
        found = bad(
            name,
            f"could not be looked at: {type(error).__name__}: {one_line(error)}",
            "report this with the whole output of onceread doctor --json",
        )
    if isinstance(found, list):
        yield from found
    elif found is not None:
        yield found


def model_file(settings: Settings) -> tuple[Record | None, Finding]:
    """The model that `serve` would load, and whether its file is whole."""
    try:
        if settings.model is None:
            one = record(at_path(demo_model()))
        else:
            one = record(find_named(str(settings.model), "--model"))
    except CommandError as error:
        return None, bad("model", one_line(error), "onceread models ls shows what is here, pull gets more")
    if one.problem is not None:
        return one, bad("model", f"{one.name}: {one.problem}", "download it again: onceread models pull")
    about = ", ".join(filter(None, (one.architecture, one.quantization, gib(one.size_bytes))))
    return one, ok("model", f"{one.paths[0].name} ({about})", path=str(one.paths[0]))


def show(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print them as they come. True if something is broken."""
    if as_json:
        every = list(findings)
        print(json.dumps({"findings": [asdict(one) for one in every]}, indent=2))  # noqa: T201
        return any(one.state == "bad" for one in every)
    console = Console(highlight=False, soft_wrap=True)
    counts = {"ok": 0, "warn": 0, "bad": 0}
    for one in findings:
        counts[one.state] += 1
        mark, style = _MARKS[one.state]
        console.print(Text.assemble((mark, style), "  ", (one.name, "bold"), "  ", one.text))
        if one.advice:
            console.print(Text.assemble("      → ", one.advice))
    if counts["bad"]:
        console.print(Text(f"{counts['bad']} broken, {counts['warn']} warnings", style="red"))
    else:
        console.print(Text(f"nothing is broken; {counts['warn']} warnings", style="green"))
    return counts["bad"] > 0
