"""`Llama`'s low level: what is evaluated, what comes next, and that it is the truth, held against a fresh context."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.reference import Reference
from tests.tiny.models import loaded
from tests.tiny.plain import plain_model

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import ContextLengthExceeded
from onceread.engine.request import Request, gather
from onceread.library.grammar import LlamaGrammar
from onceread.library.hooks import LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteriaList
from onceread.library.llama_state import LlamaState
from onceread.library.stepping import Stepping
from onceread.native.errors import GrammarInvalid
from onceread.native.model import MemoryKind, Model
from onceread.native.params import SamplingParams

pytestmark = pytest.mark.model

BOUND = 0.5  # noise of these F32 models is under 0.1; a wrong state was seen to be off by 1 and more
CTX = 1024
MIB = 1024 * 1024
Text = list[int]


@dataclass
class Served:
    """As much of what is served as the low level looks at."""

    engine: Engine
    model: Model
    others: dict[str, Any] = field(default_factory=dict)


class Steps(Stepping):
    """The low level alone."""

    def __init__(self, engine: Engine, namespace: str = "one", **options: Any) -> None:
        self._serving = Served(engine, engine.model)  # type: ignore[assignment]
        self._namespace = namespace
        self._lock = threading.RLock()
        self._begin_stepping(**options)

    @property
    def evaluated(self) -> int:
        return self._place.evaluated


@pytest.fixture(scope="module", params=["plain", "windowed", "hybrid"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("tiny")
    if request.param == "plain":
        with plain_model(folder, smollm2_path) as made:
            yield made
    else:
        with loaded(request.param, folder, smollm2_path) as made:
            yield made


@pytest.fixture(scope="module")
def reference(model: Model) -> Iterator[Reference]:
    made = Reference(model, CTX)
    yield made
    made.close()


@pytest.fixture
def make_engine(model: Model) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**changes: Any) -> Engine:
        config = {"ctx_size": CTX, "batch_size": 128, "cache_ram": 64 * MIB, "check": True}
        made.append(Engine(model, EngineConfig(**(config | changes))).start())
        return made[-1]

    yield make
    for engine in made:
        engine.close(grace=0)


@pytest.fixture
def steps(make_engine: Callable[..., Engine]) -> Steps:
    return Steps(make_engine())


def words(n: int, seed: int = 1) -> Text:
    rng = random.Random(seed)
    return [rng.randrange(100, 40_000) for _ in range(n)]


def take(generator: Any, n: int) -> Text:
    return [next(generator) for _ in range(n)]


def off(reference: Reference, tokens: Text, row: np.ndarray[Any, Any]) -> float:
    """How far logits are from a fresh context's behind the same tokens."""
    return float(np.abs(reference.logits(tokens, [])[-1] - row).max())


def test_reading_a_text_in_pieces_reads_each_token_once_and_gives_the_right_logits(
    steps: Steps, reference: Reference
) -> None:
    text = words(90)
    steps.eval(text[:60])
    steps.eval(text[60:61])
    steps.eval(text[61:])
    assert (steps.n_tokens, steps.evaluated) == (90, 90)
    assert list(steps.eval_tokens) == text == steps.input_ids[:90].tolist()
    assert off(reference, text, np.array(steps.eval_logits[-1])) < BOUND
    assert off(reference, words(90, 2), np.array(steps.eval_logits[-1])) > BOUND, "the bound shows nothing"


def test_generating_computes_a_token_for_each_that_is_asked_for_and_none_ahead(
    steps: Steps, reference: Reference
) -> None:
    generator = steps.generate(words(50), temp=0.0)
    reply = take(generator, 6)
    assert (steps.evaluated, steps.n_tokens) == (50 + 5, 50 + 5)
    generator.close()
    assert steps._serving.engine.stats().prompt_evaluated_total <= 55
    cold = reference.logits(words(50), reply)
    for row, token in zip(cold, reply, strict=False):
        assert row.max() - row[token] < BOUND


def test_a_text_generated_before_costs_one_token_and_a_changed_one_what_was_changed(steps: Steps) -> None:
    text = words(80)
    take(steps.generate(text, temp=0.0), 3)
    before = steps.evaluated
    take(steps.generate(text, temp=0.0), 1)
    assert steps.evaluated - before <= 1
    if steps._serving.model.memory_kind is not MemoryKind.PLAIN:
        return  # these go on from checkpoints only
    take(steps.generate([*text[:70], *words(10, 3)], temp=0.0), 1)
    assert steps.evaluated - before <= 1 + 10


def test_generating_without_reset_goes_on_behind_what_was_read(steps: Steps, reference: Reference) -> None:
    text = words(64)
    steps.eval(text[:40])
    before = steps.evaluated
    take(steps.generate(text[40:], temp=0.0, reset=False), 2)
    assert steps.evaluated - before == 24 + 1
    assert steps.n_tokens == 65
    before = steps.evaluated
    token = take(steps.generate([], temp=0.0, reset=False), 1)[0]
    assert (steps.n_tokens, steps.evaluated) == (65, before), "its logits were at hand"
    cold = reference.logits(list(steps.eval_tokens), [])[-1]
    assert cold.max() - cold[token] < BOUND


def test_tokens_sent_to_a_generator_are_read_behind_the_last_one(steps: Steps, reference: Reference) -> None:
    text, sent = words(40), words(5, 4)
    generator = steps.generate(text, temp=0.0)
    first = next(generator)
    second = generator.send(sent)
    assert list(steps.eval_tokens) == [*text, first, *sent]
    assert steps.evaluated == 40 + 1 + 5
    cold = reference.logits([*text, first, *sent], [])[-1]
    assert cold.max() - cold[second] < BOUND


def test_sampling_by_hand_is_generating(steps: Steps) -> None:
    text = words(40)
    steps.eval(text)
    by_hand = []
    for _ in range(12):
        by_hand.append(steps.sample(temp=0.0))
        steps.eval(by_hand[-1:])
    assert steps.evaluated == 40 + 12
    assert list(steps.eval_tokens) == text + by_hand


def test_going_back_and_forth_reads_nothing_twice(steps: Steps, reference: Reference) -> None:
    text, other = words(70), words(20, 5)
    steps.eval(text)
    steps.n_tokens = 50
    assert list(steps.eval_tokens) == text[:50]
    steps.eval(other)
    assert off(reference, text[:50] + other, np.array(steps.eval_logits[-1])) < BOUND
    steps.reset()
    assert steps.n_tokens == 0
    before = steps.evaluated
    steps.eval(text)
    if steps._serving.model.memory_kind is MemoryKind.PLAIN:
        assert before == 70 + 20
        assert steps.evaluated - before == 1
    assert off(reference, text, np.array(steps.eval_logits[-1])) < BOUND


def test_a_saved_state_is_gone_on_from_and_its_text_is_not_read_again(
    steps: Steps, reference: Reference
) -> None:
    text = words(60)
    steps.eval(text)
    state = steps.save_state()
    steps.reset()
    steps.eval(words(30, 6))
    before = steps.evaluated
    steps.load_state(pickle.loads(pickle.dumps(state)))
    assert (list(steps.eval_tokens), steps.evaluated) == (text, before)
    more = words(4, 7)
    steps.eval(more)
    # Where a memory needs checkpoints, the one right before the text's last token is as near as they come.
    assert 4 <= steps.evaluated - before <= 4 + (steps._serving.model.memory_kind is not MemoryKind.PLAIN)
    assert off(reference, text + more, np.array(steps.eval_logits[-1])) < BOUND


def test_another_engine_reads_a_loaded_state_once(make_engine: Callable[..., Engine]) -> None:
    here, there = Steps(make_engine()), Steps(make_engine())
    here.eval(words(60))
    there.load_state(here.save_state())
    assert there.evaluated == 0
    take(there.generate([], reset=False, temp=0.0), 2)
    assert there.evaluated == 60 + 1


def test_a_state_of_another_vocabulary_is_refused(steps: Steps) -> None:
    steps.eval(words(5))
    state = steps.save_state()
    foreign = LlamaState(state.input_ids, state.scores, 5, b"another one", 11, None)
    with pytest.raises(ValueError, match="another vocabulary"):
        steps.load_state(foreign)
    assert steps.n_tokens == 5


def test_logits_of_all_tokens_are_a_fresh_contexts(
    make_engine: Callable[..., Engine], reference: Reference
) -> None:
    steps = Steps(make_engine(), logits_all=True)
    text = words(50)
    steps.eval(text[:30])
    steps.eval(text[30:])
    reply = take(steps.generate([], reset=False, temp=0.0), 3)
    assert steps.scores.shape == (52, len(steps.eval_logits[0])) == (len(steps.eval_logits), 49152)
    cold = reference.logits(text[:1], [*text[1:], *reply[:2]])
    assert np.abs(cold - steps.scores).max() < BOUND
    assert steps.evaluated == 52
    assert steps.sample(temp=0.0, idx=9) == steps.scores[9].argmax()


def test_logits_of_all_tokens_are_right_where_others_read_the_text_before(
    make_engine: Callable[..., Engine], reference: Reference
) -> None:
    engine = make_engine()
    text = words(50)
    gather(engine.submit(Request(tuple(text), max_tokens=0, namespace="one")))
    steps = Steps(engine, logits_all=True)
    steps.eval(text)
    assert np.abs(reference.logits(text[:1], text[1:]) - steps.scores).max() < BOUND
    assert steps.evaluated == 50, "logits are not kept with what was read"


def test_scores_are_refused_where_they_are_not_kept(steps: Steps) -> None:
    steps.eval(words(5))
    with pytest.raises(RuntimeError, match="logits_all=True"):
        _ = steps.scores
    with pytest.raises(ValueError, match="logits_all=True"):
        steps.sample(idx=2)
    assert len(steps.eval_logits) == 1


def test_hooks_see_the_text_and_change_what_is_chosen(steps: Steps) -> None:
    text, seen = words(30), []

    def only(token: int) -> Callable[..., Any]:
        def forbid(ids: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            seen.append(ids.tolist())
            chosen = np.full_like(scores, -np.inf)
            chosen[token] = scores[token]
            return chosen

        return forbid

    reply = take(steps.generate(text, temp=1.0, logits_processor=LogitsProcessorList([only(777)])), 3)
    assert reply == [777] * 3
    assert seen == [text, [*text, 777], [*text, 777, 777]]
    assert steps.sample(logits_processor=[only(778)]) == 778

    asked: list[Text] = []

    def enough(ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> bool:
        asked.append(ids.tolist())
        return len(ids) >= 32

    given = list(steps.generate(text, temp=0.0, stopping_criteria=StoppingCriteriaList([enough])))
    assert len(given) == 2, "the token that it was asked about is not given"
    assert [len(ids) for ids in asked] == [30, 31, 32]


def test_a_reply_may_be_kept_from_ending(steps: Steps) -> None:
    eos = steps._serving.model.vocab.eos
    always = LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == eos, 99.0, scores)])
    assert take(steps.generate(words(20), logits_processor=always, temp=0.0), 1) == [eos]
    always.append(MinTokensLogitsProcessor(2, eos))
    reply = take(steps.generate(words(20), logits_processor=always, temp=0.0), 3)
    assert reply.index(eos) == 2


def test_what_a_hook_raises_reaches_the_caller_and_the_place_stays_usable(steps: Steps) -> None:
    def broken(ids: Any, scores: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        next(steps.generate(words(20), logits_processor=broken))
    with pytest.raises(ValueError, match="shape"):
        next(steps.generate(words(20), logits_processor=lambda ids, scores: scores[:5]))
    before = steps.evaluated
    take(steps.generate(words(20)), 1)
    assert steps.evaluated == before


def test_a_grammar_holds_from_token_to_token(steps: Steps) -> None:
    grammar = LlamaGrammar.from_string('root ::= "yes, " ("sir" | "madam")')
    vocab = steps._serving.model.vocab
    for _ in range(2):  # one object serves again
        reply = []
        for token in steps.generate(words(20), temp=1.0, grammar=grammar):
            if vocab.is_eog(token):
                break
            reply.append(token)
        assert vocab.detokenize(reply) in (b"yes, sir", b"yes, madam")


def test_grammars_are_checked_where_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(GrammarInvalid, match="grammar"):
        LlamaGrammar.from_string("root ::= nothing-of-this-name")
    with pytest.raises(GrammarInvalid, match="schema"):
        LlamaGrammar.from_json_schema('{"type": "no such type"}')
    file = tmp_path / "yes.gbnf"
    file.write_text('root ::= "yes"')
    assert LlamaGrammar.from_file(file).constraint.text == file.read_text()
    assert LlamaGrammar.from_json_schema({"type": "integer"}).constraint.kind == "json_schema"


def test_a_seed_makes_a_text_come_again(make_engine: Callable[..., Engine]) -> None:
    steps = Steps(make_engine(), seed=5)
    wild = {"temp": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    steps.eval(words(20))
    first = [steps.sample(**wild) for _ in range(2)]
    assert first[0] == first[1]
    steps._seed = 6
    assert len({steps.sample(**wild), *first}) == 2


def test_what_is_gone_from_llama_cpp_is_refused_by_name(steps: Steps) -> None:
    for wrong, words_of in (({"tfs_z": 0.5}, "tfs_z"), ({"penalize_nl": False}, "penalize_nl")):
        with pytest.raises(ValueError, match=words_of):
            next(steps.generate([5], **wrong))
    with pytest.raises(ValueError, match="outside"):
        steps.eval([10**6])
    with pytest.raises(ValueError, match="eval some tokens"):
        steps.sample()


def test_a_full_context_is_said_and_can_be_filled_to_its_last_position(
    make_engine: Callable[..., Engine],
) -> None:
    steps = Steps(make_engine(ctx_size=256))
    steps.eval(words(250))
    generator = steps.generate([], reset=False, temp=0.0)
    take(generator, 7)
    with pytest.raises(ContextLengthExceeded, match="256"):
        next(generator)
    assert steps.n_tokens == 256
    steps.reset()
    steps.eval(words(256, 2))
    assert steps.n_tokens == 256


def test_a_place_is_in_nobodys_way(make_engine: Callable[..., Engine], reference: Reference) -> None:
    engine = make_engine(parallel=1)
    steps = Steps(engine)
    text = words(40)
    generator = steps.generate(text, temp=0.0)
    reply = take(generator, 3)
    for seed in (11, 12):
        prompt = tuple(words(30, seed))
        done = gather(engine.submit(Request(prompt, SamplingParams(temperature=0), 3, namespace="two")))
        assert done.usage.evaluated_tokens == 30
        reply += take(generator, 2)
    assert steps.evaluated == 40 + 6
    steps._end_stepping()
    assert engine.stats().prompt_reevaluated_total == 0, (
        "its state was not kept while others ran in its place"
    )
    cold = reference.logits(text, reply)
    for row, token in zip(cold, reply, strict=False):
        assert row.max() - row[token] < BOUND


def test_two_generators_go_on_each_in_its_own_text(steps: Steps, reference: Reference) -> None:
    texts = [words(40, 21), words(40, 22)]
    generators = [steps.generate(text, temp=0.0) for text in texts]
    replies: list[Text] = [[], []]
    for _ in range(3):
        for reply, generator in zip(replies, generators, strict=True):
            reply.append(next(generator))
    for text, reply in zip(texts, replies, strict=True):
        cold = reference.logits(text, reply)
        for row, token in zip(cold, reply, strict=False):
            assert row.max() - row[token] < BOUND


def test_what_stepping_read_others_need_not_read(steps: Steps) -> None:
    engine = steps._serving.engine
    text = words(60)
    steps.eval(text)
    done = gather(engine.submit(Request((*text, 5, 6), max_tokens=1, namespace="one")))
    assert done.usage.evaluated_tokens == 2
    assert (
        gather(engine.submit(Request((*text, 5, 6), max_tokens=1, namespace="two"))).usage.cached_tokens == 0
    )


def test_an_engine_that_closes_ends_what_waits(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    steps = Steps(engine)
    generator = steps.generate(words(20))
    next(generator)
    engine.close(grace=5)
    with pytest.raises(Exception, match="shutting down"):
        next(generator)
    steps._end_stepping()
