"""From `Settings` to options of the command line: texts and names are written once, there."""

from __future__ import annotations

from typing import Any, get_args

import typer

from onceread.server.settings import Settings, field_meta, is_hidden


def option(name: str) -> Any:
    """The option for the setting ``name``. Values stay text: `Settings` checks them."""
    group, flag, metavar, text = field_meta(name)
    default = Settings.model_fields[name].default
    if default not in (None, (), False) and isinstance(default, str | int | float):
        text = f"{text} [{_short(default)}]"
    choices = [
        str(choice) for choice in get_args(Settings.model_fields[name].annotation) if isinstance(choice, str)
    ]
    return typer.Option(
        flag,
        help=text.replace("[", r"\["),  # rich's markup
        metavar=metavar or None,
        rich_help_panel=group,
        hidden=is_hidden(name),
        show_default=False,
        autocompletion=(lambda: choices) if choices else None,
    )


def _short(default: str | int | float) -> str:
    if isinstance(default, int) and default and default % 2**20 == 0:
        return f"{default // 2**20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default)
