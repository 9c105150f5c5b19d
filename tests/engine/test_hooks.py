"""Functions of a client's around the sampler: what they see, what they change, and whom they can hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.reference import Reference
from tests.tiny.plain import plain_model

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import EngineFailed, InvalidRequest
from onceread.engine.request import FinishEvent, LogitsEvent, Request, TextEvent, gather
from onceread.native.model import Model
from onceread.native.params import Constraint, SamplingParams

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
PROMPT = tuple((i * 7919) % 40_000 + 100 for i in range(40))
BOUND = 0.5
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("tiny"), smollm2_path) as made:
        yield made


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    with Engine(model, EngineConfig(ctx_size=2048, cache_ram=64 * 1024 * 1024, check=True)) as made:
        yield made


@pytest.fixture(scope="module")
def reference(model: Model) -> Iterator[Reference]:
    made = Reference(model)
    yield made
    made.close()


def only(*tokens: int) -> Callable[[Array, Array], Array]:
    """Forbids all but these."""

    def processor(ids: Array, scores: Array) -> Array:
        left = np.full_like(scores, -np.inf)
        left[list(tokens)] = scores[list(tokens)]
        return left

    return processor


def test_a_processor_sees_prompt_and_reply_and_decides_what_may_come(
    engine: Engine, reference: Reference
) -> None:
    seen: list[tuple[list[int], Array]] = []

    def processor(ids: Array, scores: Array) -> Array:
        seen.append((ids.tolist(), scores.copy()))
        ids[:] = 0  # theirs to keep, and to spoil
        scores[:] = -np.inf
        scores[700 + len(seen)] = 1.0
        return scores

    done = gather(
        engine.submit(Request(PROMPT, SamplingParams(temperature=2.0), 3, logits_processor=processor))
    )
    assert done.ids == [[701, 702, 703]]
    assert [ids for ids, _ in seen] == [[*PROMPT], [*PROMPT, 701], [*PROMPT, 701, 702]]
    cold = reference.logits(list(PROMPT), [701, 702])
    assert np.abs(cold - np.stack([scores for _, scores in seen])).max() < BOUND
    again = gather(engine.submit(Request((*PROMPT, 701, 702), GREEDY, 1)))
    assert again.usage.evaluated_tokens == 1, "it is remembered like any other"


def test_a_request_with_a_processor_shares_what_others_read(engine: Engine) -> None:
    gather(engine.submit(Request(PROMPT, GREEDY, 1)))
    done = gather(engine.submit(Request((*PROMPT, 5), GREEDY, 1, logits_processor=only(9))))
    assert (done.usage.evaluated_tokens, done.ids) == (1, [[9]])


def test_under_a_grammar_the_processor_chooses_among_what_it_allows(engine: Engine) -> None:
    vocab = engine.model.vocab
    yes, no = (vocab.tokenize(word, add_special=False, parse_special=False)[0] for word in ("yes", "no"))
    sampling = SamplingParams(temperature=1.0, constraint=Constraint("gbnf", 'root ::= "yes" | "no"'))
    for wanted, text in ((yes, "yes"), (no, "no")):

        def prefer(ids: Array, scores: Array, wanted: int = wanted) -> Array:
            scores[wanted] = np.inf
            return scores

        assert gather(engine.submit(Request(PROMPT, sampling, 8, logits_processor=prefer))).texts == [text]
    dead = gather(engine.submit(Request(PROMPT, sampling, 8, logits_processor=only(50))))
    assert (dead.texts, dead.reasons) == ([""], ["length"]), "nothing is left that both allow"


def test_a_criterion_ends_the_reply_before_the_token_it_was_asked_about(engine: Engine) -> None:
    asked: list[list[int]] = []

    def criterion(ids: Array, logits: Array) -> bool:
        asked.append(ids.tolist())
        assert logits.shape == (engine.model.vocab.size,)
        assert np.isfinite(logits).all(), "the logits are the model's own"
        return len(ids) == len(PROMPT) + 2

    request = Request(
        PROMPT, GREEDY, 9, ignore_eos=True, stopping_criteria=criterion, logits_processor=only(9)
    )
    done = gather(engine.submit(request))
    assert (done.ids, done.reasons, done.usage.completion_tokens) == ([[9, 9]], ["stop"], 2)
    assert [len(ids) for ids in asked] == [len(PROMPT) + i for i in range(3)]


def wrong_shape(ids: Array, scores: Array) -> Array:
    return scores[:-1]


def not_numbers(ids: Array, scores: Array) -> Array:
    scores[3] = np.nan
    return scores


def raising(ids: Array, scores: Array) -> Any:
    raise KeyError("mine")


def leaving(ids: Array, scores: Array) -> Any:
    raise SystemExit(3)


def nothing_left(ids: Array, scores: Array) -> Array:
    return np.full_like(scores, -np.inf)


def nothing(ids: Array, scores: Array) -> Any:
    return None


BROKEN: dict[str, tuple[Any, type[Exception], str]] = {
    "raises": (raising, KeyError, "mine"),
    "means to end the process": (leaving, EngineFailed, "SystemExit"),
    "returns another shape": (wrong_shape, ValueError, "shape"),
    "returns NaN": (not_numbers, ValueError, "NaN"),
    "leaves no token": (nothing_left, ValueError, "no token"),
    "returns nothing": (nothing, ValueError, "shape|number|float"),
}


@pytest.mark.parametrize(("hook", "error", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_processor_that_is_broken_ends_its_own_request_only(
    engine: Engine, hook: Any, error: type[Exception], message: str
) -> None:
    other = engine.submit(Request(PROMPT[::-1], GREEDY, 30, ignore_eos=True))
    assert isinstance(other.get(), TextEvent | FinishEvent)
    broken = engine.submit(Request(PROMPT, GREEDY, 30, ignore_eos=True, n=3, logits_processor=hook))
    with pytest.raises(error, match=message):
        gather(broken)
    assert gather(other).usage.completion_tokens == 30
    assert gather(engine.submit(Request(PROMPT, GREEDY, 1))).usage.evaluated_tokens == 1, "what it read stays"
    stats = engine.stats()
    assert (stats.requests_failed, stats.running, engine.state) == (1, 0, "ok")


def test_a_criterion_that_raises_ends_its_own_request_only(engine: Engine) -> None:
    with pytest.raises(KeyError, match="mine"):
        gather(engine.submit(Request(PROMPT, GREEDY, 3, stopping_criteria=raising)))
    assert gather(engine.submit(Request(PROMPT, GREEDY, 3, ignore_eos=True))).usage.completion_tokens == 3


def test_a_hook_that_asks_its_own_engine_is_refused_instead_of_waiting_for_ever(engine: Engine) -> None:
    def asking(ids: Array, scores: Array) -> Array:
        gather(engine.submit(Request(PROMPT, GREEDY, 1)))
        return scores

    with pytest.raises(InvalidRequest, match="hook"):
        gather(engine.submit(Request(PROMPT, GREEDY, 1, logits_processor=asking)))


def test_events_tell_the_tokens_that_were_sampled(engine: Engine) -> None:
    wild = SamplingParams(temperature=4.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    handle = engine.submit(Request(PROMPT, wild, 40, ignore_eos=True, logprobs=0))
    ids: list[int] = []
    entries: list[int] = []
    for event in handle:
        if isinstance(event, TextEvent):
            ids += event.ids
            entries += [entry.token for entry in event.logprobs]
            assert len(ids) == event.tokens
        elif isinstance(event, FinishEvent):
            ids += event.ids
    assert len(ids) == 40
    assert ids[: len(entries)] == entries


def test_tokens_of_a_stop_string_are_told_of_too(engine: Engine) -> None:
    vocab = engine.model.vocab
    word = vocab.tokenize(" lighthouse", add_special=False, parse_special=False)
    text = vocab.detokenize(word).decode()
    turn = iter([*word, *word])

    def processor(ids: Array, scores: Array) -> Array:
        return only(next(turn))(ids, scores)

    request = Request(PROMPT, GREEDY, 9, stop=(text + text[:2],), logits_processor=processor)
    done = gather(engine.submit(request))
    assert done.texts == [""]
    assert done.ids == [[*word, *word][: done.usage.completion_tokens]]


@pytest.mark.parametrize("known", [False, True], ids=["cold", "read before"])
def test_a_prompts_logits_are_handed_out_from_where_they_are_wanted(
    engine: Engine, reference: Reference, known: bool
) -> None:
    if known:
        gather(engine.submit(Request(PROMPT, GREEDY, 0)))
    cold = reference.logits(list(PROMPT[:1]), list(PROMPT[1:]))
    last = gather(engine.submit(Request(PROMPT, GREEDY, 0, logits_from=len(PROMPT) - 1)))
    assert last.usage.evaluated_tokens == (1 if known else len(PROMPT))
    assert last.logits is not None
    assert np.abs(cold[-1:] - last.logits).max() < BOUND
    some = gather(engine.submit(Request(PROMPT, GREEDY, 0, logits_from=30)))
    assert some.usage.evaluated_tokens == 10
    assert some.logits is not None
    assert np.abs(cold[30:] - some.logits).max() < BOUND
    everything = gather(engine.submit(Request(PROMPT, GREEDY, 0, logits_from=0)))
    assert everything.logits is not None
    assert everything.logits.shape == cold.shape
    assert np.abs(cold - everything.logits).max() < BOUND


def test_all_logits_of_a_long_prompt_come_slice_by_slice_and_can_be_cancelled(model: Model) -> None:
    """In the smallest slices: llama.cpp aborts where a batch could not hold a token of each sequence."""
    prompt = PROMPT * 10
    with Engine(model, EngineConfig(ctx_size=2048, batch_size=32, check=True)) as engine:
        handle = engine.submit(Request(prompt, GREEDY, 0, logits_from=0))
        first = handle.get()
        handle.cancel()
        assert isinstance(first, LogitsEvent)
        assert (first.start, first.rows.shape) == (0, (engine.config.parallel + 33, model.vocab.size))
        rest = list(handle)
        assert sum(len(e.rows) for e in rest if isinstance(e, LogitsEvent)) < len(prompt) - 32
        done = gather(engine.submit(Request(prompt, GREEDY, 0, logits_from=0)))
        assert done.logits is not None
        assert len(done.logits) == len(prompt)


@pytest.mark.parametrize(
    "wrong",
    [
        {"logits_from": 40},
        {"logits_from": -1},
        {"logits_from": 0, "n": 2},
        {"cursor": True},
        {"cursor": True, "logits_from": 0, "max_tokens": 5},
    ],
    ids=[
        "behind the end",
        "before the beginning",
        "of several replies",
        "a blind cursor",
        "a cursor that samples",
    ],
)
def test_logits_that_can_t_be_handed_out_are_refused(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="logits"):
        engine.submit(Request(PROMPT, GREEDY, **({"max_tokens": 0} | wrong)))


@pytest.mark.parametrize("tokens", [(), (10**6,), (-1,)], ids=["nothing", "too high", "negative"])
def test_a_cursor_that_is_sent_on_with_nonsense_ends_alone(engine: Engine, tokens: tuple[int, ...]) -> None:
    cursor = engine.submit(Request(PROMPT, GREEDY, 0, logits_from=len(PROMPT) - 1, cursor=True))
    assert isinstance(cursor.get(), LogitsEvent)
    cursor.go_on(tokens)
    with pytest.raises(InvalidRequest):
        gather(cursor)
    assert gather(engine.submit(Request(PROMPT, GREEDY, 1))).usage.evaluated_tokens == 1
