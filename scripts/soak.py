"""Run the heavy tests at full scale and write what happened to docs/soak.md: `make soak`.

Arguments go to pytest. A test adds figures to its row by pytest's `record_property`.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "soak.md"
SEED = "20240229"
NOTHING_RAN = 5  # pytest's exit status
PER_TEST = 7200  # seconds


@dataclass(frozen=True)
class Row:
    name: str
    result: str
    seconds: float
    figures: str


def main(arguments: list[str]) -> int:
    seed = os.environ.get("SOAK_SEED", SEED)
    began = datetime.datetime.now(datetime.timezone.utc)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "soak",
            f"--timeout={PER_TEST}",
            f"--junitxml={results}",
        ]
        environment = {**os.environ, "SOAK": "full", "SOAK_SEED": seed}
        status = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False).returncode
        if status == NOTHING_RAN:
            print("soak: no heavy test was found; docs/soak.md is left as it was", file=sys.stderr)
            return status
        if not results.exists():
            print("soak: pytest ended before it wrote its results", file=sys.stderr)
            return status or 1
        rows = read(results)
    said = shlex.join(["make", "soak", *([f"ARGS={shlex.join(arguments)}"] if arguments else [])])
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report(rows, said, seed, began, time.monotonic() - started))
    print(f"soak: {REPORT.relative_to(ROOT)} is written")
    return status


def read(results: Path) -> list[Row]:
    rows = []
    for case in ET.parse(results).getroot().iter("testcase"):
        result = "passed"
        for kind, word in (("failure", "FAILED"), ("error", "ERROR"), ("skipped", "skipped")):
            if case.find(kind) is not None:
                result = word
        figures = "; ".join(f"{item.get('name')} {item.get('value')}" for item in case.iter("property"))
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        rows.append(Row(name, result, float(case.get("time", "0")), figures))
    return rows


def report(rows: list[Row], said: str, seed: str, began: datetime.datetime, seconds: float) -> str:
    counts = {
        word: sum(row.result == word for row in rows) for word in ("passed", "FAILED", "ERROR", "skipped")
    }
    total = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    binding = importlib.metadata.version("llama-cpp-python")
    lines = [
        "# The heavy tests at full scale",
        "",
        "Written by `make soak`; do not edit.",
        "",
        f"- command: `{said}` with seed {seed}",
        f"- date: {began:%Y-%m-%d %H:%M} UTC, commit {commit()}",
        f"- machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, llama-cpp-python {binding}",
        f"- result: **{total}** in {seconds / 60:.1f} minutes",
        "",
        "| test | result | seconds | figures |",
        "| --- | --- | ---: | --- |",
    ]
    lines += [
        f"| `{cell(row.name)}` | {row.result} | {row.seconds:.1f} | {cell(row.figures)} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def commit() -> str:
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return head.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
