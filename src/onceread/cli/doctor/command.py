"""``onceread doctor``: look at everything, say what was found and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Text = Optional[str]  # noqa: UP045 - typer reads these at run time
Config = Optional[Path]  # noqa: UP045


def doctor(
    model: Annotated[
        Text, typer.Option("--model", metavar="FILE|NAME", help="try this model (default: as serve does)")
    ] = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="the ten-second speed test")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs")] = False,
    cache_dir: Annotated[
        Text, typer.Option("--cache-dir", metavar="DIR", help="as in onceread serve")
    ] = None,
    config: Annotated[Config, typer.Option("--config", metavar="FILE", help="settings as TOML")] = None,
) -> None:
    """Look at what Onceread needs, and say what to do about what is not as it should be.

    Exit status 1 if something is broken; warnings alone are 0.
    """
    from onceread.cli.cache_options import load
    from onceread.cli.doctor.report import examine, show

    settings = load({"model": model, "cache_dir": cache_dir}, config)
    broken = show(examine(settings, speed=speed), as_json=as_json)
    raise typer.Exit(1 if broken else 0)
