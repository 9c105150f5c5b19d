"""How much memory and how many CPUs this process may use: the machine's, or its container's if that is less."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60  # version 1 writes a number near 2^63 where there is no limit


@dataclass(frozen=True, slots=True)
class Limits:
    """What control groups allow; None where they set no limit."""

    memory_bytes: int | None = None
    memory_used: int = 0  # without what the kernel would give back at once
    cpus: float | None = None


def limits(root: Path = CGROUPS, groups: Path = Path("/proc/self/cgroup")) -> Limits:
    """The tightest limits of this process's control groups, of version 1 or 2. No limits where there are none."""
    memory: list[tuple[int, int]] = []
    cpus: list[float] = []
    for kinds, path in _groups(groups):
        for folder in _up(root, kinds, path, "memory"):
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            if limit is not None and limit < _UNLIMITED:
                used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
                memory.append((limit, max(0, used - _inactive(folder))))
        for folder in _up(root, kinds, path, "cpu"):
            quota, period = _quota(folder)
            if quota and period:
                cpus.append(quota / period)
    tightest = min(memory, key=lambda one: one[0] - one[1], default=None)
    if tightest is None:
        return Limits(cpus=min(cpus, default=None))
    return Limits(tightest[0], tightest[1], min(cpus, default=None))


def free_memory() -> int:
    """Bytes that a model could take now, the container's limit regarded."""
    available = int(psutil.virtual_memory().available)
    allowed = limits()
    if allowed.memory_bytes is not None:
        available = min(available, max(0, allowed.memory_bytes - allowed.memory_used))
    return available


def _groups(file: Path) -> list[tuple[str, str]]:
    """(controllers, path) of each line; version 2 has one line without controllers."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [(kinds, path) for _, kinds, path in parts]


def _up(root: Path, kinds: str, path: str, wanted: str) -> list[Path]:
    """A group's folder and those above it, for limits hold for all below. A container sees its own as the root."""
    if kinds and wanted not in kinds.split(","):
        return []
    top = root / kinds if kinds else root
    if kinds and not top.is_dir():
        top = root / wanted
    folder = top / path.lstrip("/")
    found = [one for one in (folder, *folder.parents) if one.is_relative_to(top) and one.is_dir()]
    return found or ([top] if top.is_dir() else [])


def _quota(folder: Path) -> tuple[int, int]:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        return (0 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        return max(0, _number(folder / "cpu.cfs_quota_us") or 0), _number(folder / "cpu.cfs_period_us") or 0


def _inactive(folder: Path) -> int:
    """Pages of files that nobody uses: the kernel counts them as the group's, and drops them when it must."""
    try:
        for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(" ")
            if name in ("total_inactive_file", "inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def usable_cpus() -> float:
    """CPUs that this process may keep busy."""
    try:
        here: float = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        here = os.cpu_count() or 1
    allowed = limits().cpus
    return here if allowed is None else min(here, allowed)
