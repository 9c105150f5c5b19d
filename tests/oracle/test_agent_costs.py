"""An agent's session costs what is new in it, also with calls that the client writes anew, and requests in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceread.chat.issued import IssuedCalls
from onceread.engine.engine import Engine, EngineConfig
from onceread.native.model import Model
from tests.oracle.agent_costs import ANSWER, Cost, costs, over
from tests.server.tool_templates import LLAMA3, QWEN
from tests.tiny.plain import plain_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def plain(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("plain"), smollm2_path) as model:
        yield model


def run(model: Model, template: Path | None, turns: int = 10) -> list[Cost]:
    with Engine(model, EngineConfig(ctx_size=8192, cache_ram=2**28, check=True)) as engine:
        source = None if template is None else str(template)
        return costs(model, engine, template=source, n_tools=5, words=300, turns=turns)


@pytest.mark.parametrize("template", [None, QWEN, LLAMA3], ids=["in words", "qwen", "llama3"])
def test_an_agents_turns_cost_what_is_new_in_them(plain: Model, tmp_path: Path, template: str | None) -> None:
    path = None
    if template is not None:
        path = tmp_path / "template.jinja"
        path.write_text(template)
    found = run(plain, path)
    first, later = found[:1], found[1:]
    assert first[0].evaluated == first[0].prompt > 900
    assert over(later) <= 0.03, later
    # An answer that is cut inside of a character, or that the template trims, comes back as another text, and may
    # be read again. Calls are to the token.
    assert sum(cost.evaluated == cost.ideal for cost in later) >= len(later) - 3, later
    assert max(cost.evaluated - cost.ideal for cost in later) <= ANSWER, later


def test_without_the_words_of_the_calls_it_costs_more(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(IssuedCalls, "find", lambda *_: None)
    assert over(run(plain, None, turns=4)) > 0.03
