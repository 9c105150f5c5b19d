"""What the commands that speak to a server or load a model have in common among their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

SERVER = "A running server"

Text = Optional[str]  # noqa: UP045 - typer reads these at run time
Texts = Optional[list[str]]  # noqa: UP045
Switch = Optional[bool]  # noqa: UP045
File = Optional[Path]  # noqa: UP045

Url = Annotated[
    Text, typer.Option("--url", metavar="URL", help="such as http://127.0.0.1:8000", rich_help_panel=SERVER)
]
