"""Tools as they go into prompts: always in the same order, however a client sorted them and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# As models were trained on them; everything else follows by name.
_FIRST = {name: place for place, name in enumerate(("type", "function", "name", "description", "parameters"))}
_NOT_FOR_MODELS = ("strict",)


def canonical_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``tools`` by name, all keys sorted."""
    made = []
    for tool in sorted(tools, key=lambda tool: str(tool["function"]["name"])):
        function = {
            key: _sorted(tool["function"][key])
            for key in sorted(tool["function"], key=_place)
            if key not in _NOT_FOR_MODELS
        }
        made.append({"type": "function", "function": function})
    return made


def _place(key: str) -> tuple[int, str]:
    return _FIRST.get(key, len(_FIRST)), key


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return [_sorted(item) for item in value]
        case _:
            return value
