"""docs/api.md names every endpoint with a body and every parameter of it, so that it can't fall behind the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from onceread.server.app import create_app
from onceread.server.settings import Settings

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
DOCUMENT: dict[str, Any] = create_app(None, None, Settings()).openapi()
GROUPS = {
    name.lower(): set(re.findall(r"`([a-z_]+)`", text))
    for name, text in re.findall(r"\*(Sampling|Constraints|Cache)\* (?:below )?(?:is|are) ([^*]+)", PAGE)
}


def bodies() -> dict[str, set[str]]:
    """The parameters of every endpoint with a JSON body, by its path. The cache's have a page of their own."""
    found = {}
    schemas = DOCUMENT["components"]["schemas"]
    for path, operations in DOCUMENT["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is None or path.startswith("/cache"):
            continue
        schema = body["content"]["application/json"]["schema"]
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        found[path] = set(schema.get("properties", {}))
    return found


def row(path: str) -> str:
    """The table's row of an endpoint, with the groups' parameters in it."""
    (line,) = [
        line for line in PAGE.splitlines() if line.startswith("| ") and f"`POST {path}`" in line.split("|")[1]
    ]
    cells = line.split("|")
    if re.search(r"\bas above\b", cells[2]):
        above = PAGE.splitlines()[: PAGE.splitlines().index(line)]
        line += next(other for other in reversed(above) if "as above" not in other)
    return line + " ".join(
        [f"`{name}`" for group in GROUPS if f"*{group}*" in line for name in GROUPS[group]]
    )


def test_the_groups_are_found() -> None:
    assert set(GROUPS) == {"sampling", "constraints", "cache"}
    assert {"temperature", "seed"} <= GROUPS["sampling"]


@pytest.mark.parametrize(("path", "parameters"), bodies().items(), ids=bodies())
def test_the_table_names_every_parameter(path: str, parameters: set[str]) -> None:
    named = set(re.findall(r"`([A-Za-z_]+)", row(path)))
    assert not parameters - named
