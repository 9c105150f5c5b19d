"""Engines over the demo model, and short ways to ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Completed, Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

GREEDY = SamplingParams(temperature=0)
PROSE = (
    "Sailors followed fires on hills, and every village kept its own watch. In 1716 the first tower was built "
    "on an island near Boston, and a keeper lived there with his family. He lit candles, later oil lamps, and "
    "he walked the rocks at night. Mathematics changed everything: a lens bends the light into one beam. "
)


@pytest.fixture(scope="session")
def model(smollm2_path: Path) -> Iterator[Model]:
    with Model.load(smollm2_path) as loaded:
        yield loaded


@pytest.fixture
def make_engine(model: Model) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**changes: int) -> Engine:
        made.append(Engine(model, EngineConfig(**({"ctx_size": 4096, "check": True} | changes))).start())
        return made[-1]

    yield make
    for engine in made:
        engine.close(grace=0)


@pytest.fixture
def tokens(model: Model) -> list[int]:
    """1,600 tokens of prose."""
    return model.vocab.tokenize(PROSE * 30, add_special=True, parse_special=True)[:1600]


class Chat:
    """A client that sends the whole history as text with every turn, as chat clients do."""

    def __init__(self, engine: Engine, system: str = "You are a lighthouse keeper.") -> None:
        self.engine = engine
        self.history = f"<|im_start|>system\n{system}<|im_end|>\n"

    def say(self, text: str, max_tokens: int = 12) -> Completed:
        self.history += f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        done = self.ask(self.history, max_tokens)
        self.history += done.texts[0] + "<|im_end|>\n"
        return done

    def ask(self, text: str, max_tokens: int = 12) -> Completed:
        prompt = self.engine.model.vocab.tokenize(text, add_special=True, parse_special=True)
        return gather(self.engine.submit(Request(tuple(prompt), GREEDY, max_tokens)))
