"""The machine: memory, what a container leaves of it, and the limits of the process."""

from __future__ import annotations

import resource
import shutil
import tempfile
from pathlib import Path

import psutil

from onceread.cli.doctor.finding import Finding, bad, ok, warn
from onceread.cli.machine import Limits, free_memory, limits, usable_cpus
from onceread.cli.model_file import gib
from onceread.engine.defaults import default_threads
from onceread.models.catalog import Record

_LITTLE_MEMORY = 2**30
_FEW_FILES = 256  # connections, and files of the cache
_LITTLE_DISK = 2**28


def memory(model: Record | None) -> Finding:
    """Free RAM, and whether the model fits into it."""
    free, total = free_memory(), int(psutil.virtual_memory().total)
    data = {"free_bytes": free, "total_bytes": total}
    text = f"{gib(free)} of {gib(total)} are free"
    if model is not None and model.size_bytes > free:
        return bad(
            "memory",
            f"{text}, and {model.name} takes {gib(model.size_bytes)}",
            "use a smaller model or quantization, close other programs, or put layers on a GPU by --gpu-layers",
            **data,
        )
    if free < _LITTLE_MEMORY:
        return warn(
            "memory", text, "close other programs, or use a small model and a small --ctx-size", **data
        )
    return ok("memory", text, **data)


def container(found: Limits | None = None) -> Finding:
    """What control groups allow, and whether our defaults keep to it."""
    found = limits() if found is None else found
    data = {"memory_bytes": found.memory_bytes, "cpus": found.cpus}
    if found.memory_bytes is None and found.cpus is None:
        return ok("container", "no limits on memory or CPUs", **data)
    parts = []
    if found.memory_bytes is not None:
        parts.append(f"{gib(found.memory_bytes)} of memory, {gib(found.memory_used)} used")
    if found.cpus is not None:
        parts.append(f"{found.cpus:g} CPUs")
    text = f"limited to {' and '.join(parts)}"
    threads = default_threads()
    if found.cpus is not None and threads > max(1, found.cpus):
        return warn(
            "container",
            f"{text}, and {threads} threads would run by default: they would wait for each other",
            f"onceread serve --threads {max(1, int(found.cpus))}",
            **data,
        )
    left = None if found.memory_bytes is None else found.memory_bytes - found.memory_used
    if left is not None and left < _LITTLE_MEMORY:
        return warn(
            "container",
            f"{text}: what is beyond it gets the process killed",
            "give the container more memory (docker run --memory), or use a smaller model",
            **data,
        )
    return ok("container", text, **data)


def processors() -> Finding:
    """Are there cores, and is anybody else using them?"""
    usable = usable_cpus()
    load = psutil.getloadavg()[0]
    data = {"usable": usable, "load": load, "threads": default_threads()}
    text = f"{usable:g} usable, {data['threads']} threads by default, load {load:.1f}"
    if load > usable * 1.5:
        return warn(
            "processors",
            f"{text}: others keep them busy, which slows llama.cpp more than in proportion",
            "stop what runs beside it, or give llama.cpp fewer --threads (docs/threads.md)",
            **data,
        )
    return ok("processors", text, **data)


def open_files() -> Finding:
    """How many files and connections the process may have open, and how much memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    data = {"open_files": soft, "open_files_hard": hard, "address_space": space}
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        return warn(
            "limits",
            f"{soft} open files: too few for many connections beside the cache's files",
            "ulimit -n 4096 before the start, or LimitNOFILE= in the service",
            **data,
        )
    if space != resource.RLIM_INFINITY and space < psutil.virtual_memory().total:
        return warn(
            "limits",
            f"the address space is limited to {gib(space)}: mapped models count against it",
            "ulimit -v unlimited before the start",
            **data,
        )
    files = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    return ok("limits", f"{files} open files", **data)


def temporary(folder: Path | None = None) -> Finding:
    """The folder for temporary files, which programs around us need."""
    try:
        folder = Path(tempfile.gettempdir()) if folder is None else folder
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return bad(
            "temporary files",
            f"{folder or 'no folder for them'}: {error.strerror or error}",
            "make room in it, or let TMPDIR name another folder",
        )
    if free < _LITTLE_DISK:
        return warn(
            "temporary files",
            f"{gib(free)} are free in {folder}",
            "make room in it, or let TMPDIR name another folder",
            free_bytes=free,
        )
    return ok("temporary files", f"{gib(free)} are free in {folder}", free_bytes=free)
