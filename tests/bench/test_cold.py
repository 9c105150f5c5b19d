"""Whether the check of replies tells right ones from wrong ones, on the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceread.bench.cold import ColdReference, is_right
from onceread.bench.twin import Prompter
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

pytestmark = pytest.mark.model

SYSTEM = "You help the keepers of lighthouses with their daily work, in short and plain words. " * 6
QUESTIONS = ("Who keeps the lighthouse?", "Write a list of three cheap vegetables.")


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[Model]:
    with Model.load(smollm2_path) as loaded:
        yield loaded


def test_a_reply_is_right_for_its_own_conversation_and_wrong_for_another(model: Model) -> None:
    prompter = Prompter(model)
    prompts = [
        prompter.prompt([{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}])
        for text in QUESTIONS
    ]
    with Engine(model, EngineConfig(ctx_size=1024)) as engine:
        replies = [
            "".join(
                gather(engine.submit(Request(p, SamplingParams(temperature=0), 10, ignore_eos=True))).texts
            )
            for p in prompts
        ]
    reference = ColdReference(model, prompter, n_ctx=512)
    noise = reference.noise(prompts[0])  # of a prompt that is longer than the slices it is read in
    assert 0 < noise < 2
    for i in (0, 1):
        gap, compared = reference.gap(prompts[i], replies[i])
        assert compared >= 8
        assert is_right(gap, noise), f"{gap} against a noise of {noise}: {replies[i]!r}"
        gap, _ = reference.gap(prompts[1 - i], replies[i])
        assert not is_right(gap, noise), f"{gap} against a noise of {noise}: {replies[i]!r}"
    reference.close()
