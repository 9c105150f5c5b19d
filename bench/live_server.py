"""A server of our own as a process: started on a free port, waited for, ended by its process id."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def live_server(*flags: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The address of ``onceread serve`` with ``flags``, while the block runs."""
    command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--no-disk-cache", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"^Ready .*(http://\S+)", line):
                yield found.group(1)
                return
        raise SystemExit("the server ended before it was ready")
    finally:
        process.terminate()
        process.wait(timeout=30)
