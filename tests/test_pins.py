"""constraints.txt pins what pyproject.toml asks for, at versions that it allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]


def _wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_once_for(python: str) -> None:
    environment = default_environment() | {"python_version": python, "python_full_version": f"{python}.0"}
    for wanted in _wanted():
        if wanted.marker and not wanted.marker.evaluate(dict(environment)):
            continue
        pins = [
            pin
            for pin in PINS
            if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
            and (pin.marker is None or pin.marker.evaluate(dict(environment)))
        ]
        assert len(pins) == 1, f"{wanted.name} for {python}: {pins}"
        exact = re.fullmatch(r"==(\S+)", str(pins[0].specifier))
        assert exact
        assert wanted.specifier.contains(exact[1], prereleases=True), f"{pins[0]} is not {wanted.specifier}"
