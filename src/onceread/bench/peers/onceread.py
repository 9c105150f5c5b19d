"""Onceread itself, as `onceread serve` starts it, from the environment that runs the benchmark."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path

from onceread import __version__
from onceread.bench.peers.contract import Peer, Running, Setting
from onceread.bench.peers.http import HttpRunning
from onceread.bench.peers.process import Child


class Onceread(Peer):
    """``options``: of `onceread serve`, beyond what all servers have alike. They become part of the name."""

    def __init__(self, *options: str, name: str | None = None) -> None:
        self.approximate = "--reuse-moved" in options  # see docs/moved.md
        self.name = name or " ".join(["onceread", *options])
        self.about = " ".join(["onceread serve", *options])
        self._options = options

    def version(self) -> str:
        from onceread.native.backend import system_info

        binding = importlib.metadata.version("llama-cpp-python")
        return f"onceread {__version__} (llama-cpp-python {binding}): {system_info()}"

    def start(self, setting: Setting, folder: Path) -> Running:
        command = [
            sys.executable, "-m", "onceread", "serve", "--model", str(setting.model), "--port", "0",
            "--ctx-size", str(setting.ctx), "--threads", str(setting.threads),
            "--parallel", str(setting.parallel), "--batch-size", str(setting.batch),
            "--flash-attn", setting.flash_attn, "--cache-dir", str(folder / "cache"), *self._options,
        ]  # fmt: skip
        child = Child(command, folder / "server.log", env=_environment(folder), cwd=folder)
        line = child.wait_for("Ready ")
        child.drain()
        return _Running(child, next(word for word in line.split() if word.startswith("http://")), folder)


def _environment(folder: Path) -> dict[str, str]:
    """Without the settings of whoever runs the benchmark, so that the defaults are measured."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ONCEREAD_") or k == "ONCEREAD_AMX"}
    return {**kept, "XDG_CONFIG_HOME": str(folder / "no-config")}


class _Running(HttpRunning):
    def __init__(self, child: Child, url: str, folder: Path) -> None:
        super().__init__(url, ignore_eos=True)
        self._child = child
        self.pid = child.pid
        self.folder = folder / "cache"

    def counted(self) -> int | None:
        found = self.metric("onceread_prompt_evaluated_total")
        return None if found is None else int(found)

    def settled(self, timeout: float = 10.0) -> bool:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.metric("onceread_running") == 0 and self.metric("onceread_cache_unwritten_bytes") == 0:
                return True
            time.sleep(0.1)
        return False

    def cache_ram(self) -> int | None:
        try:
            return int(json.loads(self.get("/cache"))["tiers"]["memory"]["bytes"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None

    def stop(self) -> None:
        self._child.stop()
