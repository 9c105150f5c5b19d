"""The servers that are compared. To add one, write a `Peer` and put it here; see docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable

from onceread.bench.peers.binding import BindingInside, BindingServer
from onceread.bench.peers.contract import Peer
from onceread.bench.peers.llama_server import LlamaServer
from onceread.bench.peers.onceread import Onceread

PEERS: dict[str, Callable[[], Peer]] = {
    "onceread": Onceread,
    "onceread-moved": lambda: Onceread("--reuse-moved", name="onceread-moved"),
    "onceread-fa-on": lambda: Onceread("--flash-attn", "on", name="onceread-fa-on"),
    "llama-server": LlamaServer,
    "llama-server-fa-off": lambda: LlamaServer(flash_attn="off"),
    "llama-server-tuned": lambda: LlamaServer(tuned=True),
    "binding-server-ram": lambda: BindingServer("ram"),
    "binding-server-disk": lambda: BindingServer("disk"),
    "binding": BindingInside,
}
QUICK = ("onceread", "llama-server")
_SPEEDS = ("decode", "cold-prompt")
ONLY = {
    # Where a prompt's head changes is the only place where moved state differs from the exact mode.
    "onceread-moved": ("past-the-limit", "timestamp"),
    # With the same flash attention on both sides, the speeds of two builds of llama.cpp are compared.
    "onceread-fa-on": _SPEEDS,
    "llama-server-fa-off": _SPEEDS,
}


def find_peers(names: list[str]) -> list[Peer]:
    """Raises ValueError for a name that is none."""
    if unknown := [name for name in names if name not in PEERS]:
        raise ValueError(f"no peer {unknown[0]}; there are {', '.join(PEERS)}")
    return [PEERS[name]() for name in names]
