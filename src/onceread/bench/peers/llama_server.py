"""llama-server, the native one that the wheel ``xllamacpp`` brings: no compiler is needed to compare with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onceread.bench.peers.contract import FlashAttention, Peer, Running, Setting
from onceread.bench.peers.http import HttpRunning
from onceread.bench.peers.process import READY, Child
from onceread.bench.peers.venvs import python_says, venv_python

REQUIREMENT = "xllamacpp==2026.10.11549"
_STARTER = Path(__file__).parent.parent / "starters" / "llama_server.py"
# What its own documentation offers to whoever has many conversations: as much RAM for prompts as there is, a slot
# taken over only by a prompt that is much like its own, and stretches moved to where the new prompt has them.
_TUNED = {"cache_ram_mib": -1, "n_cache_reuse": 64, "slot_prompt_similarity": 0.5}


class LlamaServer(Peer):
    """``tuned``: with every switch that helps reuse. By itself it keeps 8 GiB of prompts in RAM.

    ``flash_attn``: whatever the other servers have.
    """

    def __init__(self, *, tuned: bool = False, flash_attn: FlashAttention | None = None) -> None:
        self.name = "llama-server" + ("-tuned" if tuned else "") + (f"-fa-{flash_attn}" if flash_attn else "")
        self.about = "llama-server, " + (
            "cache-ram without limit, cache-reuse 64, slot similarity 0.5" if tuned else "its defaults"
        )
        if flash_attn:
            self.about += f", flash attention {flash_attn}"
        self.approximate = tuned
        self._params: dict[str, Any] = _TUNED if tuned else {}
        self._flash_attn = flash_attn
        self._python: Path | None = None

    def prepare(self, work: Path) -> None:
        self._python = venv_python(work, "llama-server", [REQUIREMENT])

    def version(self) -> str:
        assert self._python is not None
        return python_says(self._python, str(_STARTER), "info")

    def start(self, setting: Setting, folder: Path) -> Running:
        given = {
            "model": str(setting.model), "port": 0, "ctx": setting.ctx, "threads": setting.threads,
            "parallel": setting.parallel, "batch": setting.batch, "params": self._params,
            "flash_attn": self._flash_attn or setting.flash_attn,
        }  # fmt: skip
        command = [str(self._python), str(_STARTER), json.dumps(given)]
        child = Child(command, folder / "server.log", cwd=folder)
        url = child.wait_for(READY).removeprefix(READY)
        child.drain()
        return _Running(child, url)


class _Running(HttpRunning):
    def __init__(self, child: Child, url: str) -> None:
        super().__init__(url, ignore_eos=True, cache_prompt=True)
        self._child = child
        self.pid = child.pid

    def counted(self) -> int | None:
        found = self.metric("llamacpp:prompt_tokens_total")
        return None if found is None else int(found)

    def stop(self) -> None:
        self._child.stop(terminate=False)
