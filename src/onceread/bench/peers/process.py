"""Processes of the benchmark's own: started, waited for until they are ready, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onceread.bench.peers.contract import PeerFailed

READY = "READY "
_GRACE = 60.0  # seconds to end: one that writes gigabytes on its way out gets the time


class Child:
    """A process whose standard output is read line by line and whose standard error goes into a file."""

    def __init__(
        self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path
    ) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cwd,
                env=os.environ if env is None else env,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, beginning: str, timeout: float = 300.0) -> str:
        """The first line of its output that begins so. Raises PeerFailed."""
        found: list[str] = []
        reader = threading.Thread(target=self._look_for, args=(beginning, found), daemon=True)
        reader.start()
        reader.join(timeout)
        if found:
            return found[0]
        self.stop()
        raise PeerFailed(f"it did not start: {self.last_words()}")

    def _look_for(self, beginning: str, found: list[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                found.append(line.strip())
                return

    def drain(self) -> None:
        """Read the rest of its output, so that it never waits for us."""
        assert self._process.stdout is not None
        output = self._process.stdout
        threading.Thread(target=lambda: [None for _ in output], daemon=True).start()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line; empty if it is gone."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self, *, terminate: bool = True) -> None:
        """End it and wait. Without ``terminate`` by closing its standard input alone."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            if terminate:
                self._process.terminate()
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:300] if lines else f"exit status {self._process.poll()}, and not a word"


def wait_until(ready: Callable[[], bool], timeout: float, child: Child) -> None:
    """Ask ``ready`` ten times a second. Raises PeerFailed after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            child.stop()
            raise PeerFailed(f"it was not ready within {timeout:.0f} s: {child.last_words()}")
        time.sleep(0.1)
