"""Write constraints.txt: one exact version of everything, for every Python that is supported.

Usage: python scripts/pin.py python3.10 python3.11 python3.12 python3.13

Each interpreter resolves the project with its extras (`pip install --dry-run`, nothing is
installed). Where they agree the pin has no marker; where they don't, each version gets one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNPINNED = {"onceread", "pip", "setuptools"}  # ourselves, and the tools that every venv brings
HEADER = """\
# What `make setup` installs, exactly. Written by scripts/pin.py; to raise the pins, run it again.
"""


def resolve(python: str) -> tuple[tuple[int, int], dict[str, str]]:
    """The Python's version, and the project's dependencies as pip would install them with it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, "--report", str(report), "-e", f"{ROOT}[demo,dev,docs]"], check=True)
        found = json.loads(report.read_text())
    major, minor = found["environment"]["python_version"].split(".")
    names = ((item["metadata"]["name"], item["metadata"]["version"]) for item in found["install"])
    return (int(major), int(minor)), {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in names if name not in UNPINNED
    }


def merge(resolved: dict[tuple[int, int], dict[str, str]]) -> list[str]:
    """The lines of constraints.txt. Neighbouring Pythons that agree share a line."""
    pythons = sorted(resolved)
    lines = []
    for name in sorted({name for pins in resolved.values() for name in pins}):
        spans: list[tuple[str, list[tuple[int, int]]]] = []
        for python in pythons:
            version = resolved[python].get(name)
            if version is None:
                continue
            if spans and spans[-1][0] == version:
                spans[-1][1].append(python)
            else:
                spans.append((version, [python]))
        for i, (version, span) in enumerate(spans):
            markers = []
            if i > 0:
                markers.append(f"python_version >= '{span[0][0]}.{span[0][1]}'")
            if i < len(spans) - 1:
                after = spans[i + 1][1][0]
                markers.append(f"python_version < '{after[0]}.{after[1]}'")
            lines.append(f"{name}=={version}" + (f" ; {' and '.join(markers)}" if markers else ""))
    return lines


def main(pythons: list[str]) -> int:
    if not pythons:
        print("which Pythons? e.g. python scripts/pin.py python3.10 python3.13", file=sys.stderr)
        return 1
    lines = merge(dict(resolve(python) for python in pythons))
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
