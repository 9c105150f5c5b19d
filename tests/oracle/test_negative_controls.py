"""The oracle can fail: state that is wrong in ways that happen is told from noise, every time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onceread.engine.engine import Engine
from onceread.engine.errors import EngineFailed
from onceread.engine.request import Request, gather
from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from tests.oracle.conftest import TEXT
from tests.oracle.reference import Reference, distance, recording

pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def prompts(model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A prompt and a continuation of it."""
    tokens = model.vocab.tokenize(TEXT * 3, add_special=True, parse_special=True)
    return tuple(tokens[:90]), tuple(tokens[:110])


def ask(engine: Engine, prompt: tuple[int, ...], reference: Reference) -> float:
    with recording() as traces:
        handle = engine.submit(Request(prompt, GREEDY, 8, alignable=False))
        gather(handle)
        return distance(traces[(id(handle), 0)], reference)


def test_without_a_fault_it_passes(
    make_engine: Callable[..., Engine], prompts: tuple, reference: Reference, noise: float
) -> None:
    engine = make_engine(check=0)
    assert ask(engine, prompts[0], reference) <= 2 * noise
    assert ask(engine, prompts[1], reference) <= 2 * noise


def test_one_wrong_token_in_what_was_read_is_seen(
    make_engine: Callable[..., Engine],
    prompts: tuple,
    reference: Reference,
    noise: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(check=0)
    plain = Batch.add

    def add(self: Batch, tokens: np.ndarray, pos: int, seq: int, *, logits_last: bool) -> int:
        tokens = np.array(tokens)
        if pos == 0:
            tokens[40] += 1
        return plain(self, tokens, pos, seq, logits_last=logits_last)

    monkeypatch.setattr(Batch, "add", add)
    gather(engine.submit(Request(prompts[0], GREEDY, 8, alignable=False)))
    monkeypatch.undo()
    assert ask(engine, prompts[1], reference) > 2 * noise


def test_another_conversations_cells_are_seen(
    make_engine: Callable[..., Engine],
    prompts: tuple,
    reference: Reference,
    noise: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(check=0)
    ask(engine, tuple(reversed(prompts[0])), reference)
    ask(engine, prompts[0], reference)
    stranger, own = 0, 1
    plain = Context.share

    def share(self: Context, src: int, dst: int, start: int, end: int) -> None:
        plain(self, stranger if src == own else src, dst, start, end)

    monkeypatch.setattr(Context, "share", share)
    assert ask(engine, (*prompts[0][:85], *prompts[0][10:20]), reference) > 2 * noise


def test_nothing_shared_at_all_is_an_error_and_no_reply(
    make_engine: Callable[..., Engine], prompts: tuple, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(check=0)
    ask(engine, prompts[0], reference)
    monkeypatch.setattr(Context, "share", lambda *args: None)
    with pytest.raises(EngineFailed, match="not 0 to 84"):
        ask(engine, (*prompts[0][:85], *prompts[0][10:20]), reference)
    monkeypatch.undo()
    assert ask(engine, prompts[0], reference) < 3, "the engine must go on after a failed decode"
