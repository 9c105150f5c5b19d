"""All workloads, and the data that gives them their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from onceread.bench.workloads.agents import AgentSession, LongDocument
from onceread.bench.workloads.chats import ChangingTimestamp, ChatGrowth, EditRegenerateBranch, PastTheLimit
from onceread.bench.workloads.contract import Workload, made
from onceread.bench.workloads.many import ConcurrentStreams, Restart, Rotation, SharedSystem
from onceread.bench.workloads.speed import ColdPrompt, PureDecode

Scale = Literal["full", "quick", "small"]
DATA = Path(__file__).with_name("workloads.yaml")
KINDS: dict[str, type[Workload]] = {
    cls.kind: cls
    for cls in (
        ChatGrowth, SharedSystem, EditRegenerateBranch, Rotation, Restart, PastTheLimit, AgentSession,
        ChangingTimestamp, ConcurrentStreams, LongDocument, ColdPrompt, PureDecode,
    )
}  # fmt: skip


def load_workloads(scale: Scale, only: list[str] | None = None, data: Path = DATA) -> list[Workload]:
    """The workloads that have sizes for ``scale``, in the data's order. Raises ValueError."""
    import yaml

    entries: dict[str, dict[str, Any]] = yaml.safe_load(data.read_text(encoding="utf-8"))
    if unknown := set(only or ()) - set(entries):
        raise ValueError(f"no workload {min(unknown)}; there are {', '.join(entries)}")
    found = []
    for name, entry in entries.items():
        if scale not in entry or (only and name not in only):
            continue
        if entry["kind"] not in KINDS:
            raise ValueError(f"workload {name}: no such kind: {entry['kind']}")
        head = {"name": name, "about": entry["about"], "seed": entry.get("seed", 1)}
        found.append(made(KINDS[entry["kind"]], {**head, **entry[scale]}))
    if not found:
        raise ValueError(f"none of these workloads has sizes for {scale}")
    return found
