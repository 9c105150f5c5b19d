"""What this machine is, what a process takes of it, and what others took meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_DISTURBED = 0.05  # of the machine's time
_SLACK = 0.3  # seconds that always pass elsewhere: the kernel, a shell


@dataclass(frozen=True, slots=True)
class Load:
    """How a stretch of time was used, in CPU seconds."""

    wall: float
    server: float
    client: float
    foreign: float  # everybody else's, and what a hypervisor took away

    @property
    def disturbed(self) -> bool:
        """Did others take enough to spoil a timing?"""
        return self.foreign > _SLACK + _DISTURBED * self.wall * (os.cpu_count() or 1)


class LoadMeter:
    """Counts CPU time from its making on. Servers that start and end meanwhile are told to it."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._busy = _busy()
        self._client = _own()
        self._ended = 0.0  # CPU seconds of servers that are gone
        self._running: dict[int, float] = {}

    def started(self, pid: int | None, *, before: bool = False) -> None:
        """A server runs. ``before``: it ran before the meter did, and only what comes counts."""
        if pid is not None:
            self._running[pid] = _cpu(pid) if before else 0.0

    def ending(self, pid: int | None) -> None:
        """It is about to be stopped."""
        if pid is not None and pid in self._running:
            self._ended += _cpu(pid) - self._running.pop(pid)

    def load(self) -> Load:
        server = self._ended + sum(_cpu(pid) - before for pid, before in self._running.items())
        client = _own() - self._client
        busy = _busy() - self._busy
        return Load(time.perf_counter() - self._began, server, client, max(0.0, busy - server - client))


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children; 0 if it is gone."""
    return int(sum(_of_tree(pid, lambda process: float(process.memory_info().rss))))


def size_of_folder(folder: Path) -> int:
    """What the files below take on the disk, in bytes."""
    return sum(_on_disk(path) for path in folder.rglob("*"))


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512 if path.is_file() else 0
    except OSError:  # it went meanwhile
        return 0


def describe() -> dict[str, str]:
    """The machine, for the report."""
    return {
        "cpu": _cpu_name(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} physical, {os.cpu_count()} logical",
        "ram": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _busy() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user time, too
    return float(sum(times) - idle - guests)


def _cpu(pid: int) -> float:
    return sum(_of_tree(pid, lambda process: sum(process.cpu_times()[:2])))


def _own() -> float:
    return float(sum(psutil.Process().cpu_times()[:2]))


def _of_tree(pid: int, measure: Callable[[psutil.Process], float]) -> Iterator[float]:
    """Of a process and its children, as far as they are there."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                yield measure(process)
