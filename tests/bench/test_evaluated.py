"""What each workload costs this server, in prompt tokens computed: exactly, and no matter of time.

The model is tiny and every reply is the same word, so the figures are the same on every machine. They may change when
a workload's sizes do; otherwise a larger figure is a prompt that is read twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceread.bench.peers.contract import Peer, Running, Setting
from onceread.bench.peers.http import HttpRunning
from onceread.bench.results import Run
from onceread.bench.stage import LiveStage
from onceread.bench.twin import Prompter
from onceread.bench.workloads import load_workloads
from onceread.bench.workloads.contract import seeded
from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model
from onceread.server.app import create_app
from onceread.server.settings import Settings
from tests.bench.fakes import SETTING, fixed_corpus
from tests.server.live import serving
from tests.tiny.plain import plain_model

pytestmark = pytest.mark.model

WORKLOADS = {workload.name: workload for workload in load_workloads("small")}
# By workload: prompt tokens of all requests, and those that were computed.
COSTS = {
    "chat-growth": (583, 188),
    "shared-system": (1478, 414),
    "edit-regenerate-branch": (1499, 302),
    "rotation": (1582, 863),
    "restart": (905, 356),
    "past-the-limit": (922, 804),
    "agent": (1671, 682),
    "timestamp": (467, 377),
    "concurrent": (618, 241),
    "long-document": (884, 352),
    "cold-prompt": (740, 280),
    "decode": (372, 312),
}


@pytest.fixture(scope="module")
def model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("plain"), smollm2_path) as made:
        yield made


class InThisProcess(Peer):
    """The engine, the store and the HTTP server as they are, without a process around them."""

    name, about = "onceread", "in this process"

    def __init__(self, model: Model) -> None:
        self._model = model
        (word,) = model.vocab.tokenize(" oil", add_special=False, parse_special=False)
        self._replies = {"logit_bias": {str(word): 100}, "ignore_eos": True}

    def version(self) -> str:
        return "this"

    def start(self, setting: Setting, folder: Path) -> Running:
        return _Running(self._model, setting, folder, self._replies)


class _Running(HttpRunning):
    def __init__(self, model: Model, setting: Setting, folder: Path, replies: dict[str, object]) -> None:
        self._stack = contextlib.ExitStack()
        config = EngineConfig(
            ctx_size=4096, parallel=setting.parallel, threads=1, cache_ram=2**28, cache_dir=folder, check=True
        )
        self._engine = self._stack.enter_context(Engine(model, config))
        url = self._stack.enter_context(serving(create_app(self._engine, model, Settings())))
        super().__init__(url, **replies)

    def counted(self) -> int | None:
        return self._engine.stats().prompt_evaluated_total

    def settled(self, timeout: float = 10.0) -> bool:
        self._engine.clear({"nobody"})  # returns between two turns
        return True

    def stop(self) -> None:
        self._stack.close()


def played(model: Model, name: str, folder: Path) -> Run:
    workload = WORKLOADS[name]
    with LiveStage(InThisProcess(model), SETTING, folder, Prompter(model)) as stage:
        workload.play(stage, seeded(workload, fixed_corpus()))
        return stage.run(name, 0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_computes_exactly_what_is_new(model: Model, name: str, tmp_path: Path) -> None:
    run = played(model, name, tmp_path)
    assert [s.error for s in run.samples if s.error] == []
    for s in run.samples:
        assert s.evaluated is not None
        assert s.ideal is not None
        assert s.prompt == s.ideal_prompt
        if s.at_once == 1:
            assert s.evaluated == s.ideal, s.label
    prompts, computed = (sum(getattr(s, what) for s in run.samples) for what in ("prompt", "evaluated"))
    assert computed == sum(s.ideal or 0 for s in run.samples)
    assert run.counted == computed
    assert (prompts, computed) == COSTS[name]
