"""A virtual environment for a peer, made once, so that no peer's packages touch ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from onceread.bench.peers.contract import PeerFailed


def venv_python(work: Path, name: str, requirements: list[str], env: dict[str, str] | None = None) -> Path:
    """The Python of the environment ``name`` with ``requirements`` in it, below ``work``. Raises PeerFailed.

    pip takes them from wherever it is configured to, and reuses wheels that it built before.
    """
    wanted = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:10]
    folder = work / "venvs" / f"{name}-{wanted}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "complete"
    if stamp.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = work / "venvs" / f"{name}.log"
    with log.open("w") as output:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *requirements],
        ):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                check=False,
            )
            if done.returncode != 0:
                raise PeerFailed(f"its environment could not be made; the whole story is in {log}")
    stamp.touch()
    return python


def python_says(python: Path, *arguments: str) -> str:
    """What a command of that environment prints. Raises PeerFailed."""
    done = subprocess.run(
        [str(python), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerFailed((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return done.stdout.strip()
