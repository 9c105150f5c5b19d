"""Embeddings: one vector however a text is batched, requests that never hang, failures that stay where they are."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.tiny.encoder import CLS, TRAINED, VOCABULARY, write_encoder
from tests.tiny.models import NAMES, loaded
from tests.tiny.plain import plain_model

from onceread.engine.embeddings import EmbeddingConfig, EmbeddingEngine
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import (
    EngineFailed,
    InputTooLong,
    InvalidRequest,
    QueueFull,
    ShuttingDown,
)
from onceread.engine.pooling import Pooler, normalized
from onceread.engine.request import Request, gather
from onceread.engine.turns import Turns
from onceread.native.batch import Batch
from onceread.native.embedding import EmbeddingContext, Vector, Vectors
from onceread.native.errors import ModelUnsupported, NoRoom
from onceread.native.model import Model

KINDS = ("plain", "encoder", *NAMES)
SAME = 0.999  # cosine: rounding differs with a batch's shape
OTHER = 0.98  # random weights bring all texts near each other, not that near
Make = Callable[..., EmbeddingEngine]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.getbasetemp() / "tiny"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session")
def plain(folder: Path, smollm2_path: Path) -> Iterator[Model]:
    with plain_model(folder, smollm2_path) as model:
        yield model


@pytest.fixture(scope="session")
def encoder(folder: Path) -> Iterator[Model]:
    path = folder / "encoder.gguf"
    write_encoder(path)
    with Model.load(path) as model:
        yield model


@pytest.fixture(scope="module", params=KINDS)
def any_kind(
    request: pytest.FixtureRequest, folder: Path, smollm2_path: Path, plain: Model, encoder: Model
) -> Iterator[Model]:
    if request.param in NAMES:
        with loaded(request.param, folder, smollm2_path) as model:
            yield model
    else:
        yield plain if request.param == "plain" else encoder


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[EmbeddingEngine] = []

    def one(model: Model, turns: Turns | None = None, **changes: object) -> EmbeddingEngine:
        config = EmbeddingConfig(**{"ctx_size": 512, "batch_size": 64, "threads": 2} | changes)  # type: ignore[arg-type]
        made.append(EmbeddingEngine(model, config, turns))
        return made[-1]

    yield one
    for engine in made:
        engine.close(grace=0)


def texts(model: Model, *lengths: int, seed: int = 1) -> list[list[int]]:
    """Random tokens of a model."""
    rng = random.Random(seed)
    return [[rng.randrange(5, model.vocab.size) for _ in range(n)] for n in lengths]


def vectors(engine: EmbeddingEngine, inputs: Sequence[Sequence[int]]) -> list[Vector]:
    return [normalized(vector) for vector in engine.submit(inputs).result(60)]


def until_in_line(turns: Turns) -> None:
    """Come back when the engine waits for its turn: what it has begun, it has not computed."""
    while not turns._next.locked():
        time.sleep(0.001)


def alike(one: Vector, other: Vector) -> float:
    return float(one @ other)


class TestTheSameVector:
    def test_alone_and_among_others_in_any_order(self, any_kind: Model, make: Make) -> None:
        engine = make(any_kind)
        inputs = texts(any_kind, 3, 40, 9, 17, 25, 1, 60)
        alone = [vectors(engine, [tokens])[0] for tokens in inputs]
        together = vectors(engine, inputs)
        backwards = vectors(engine, inputs[::-1])[::-1]
        for one, among, other_way in zip(alone, together, backwards, strict=True):
            assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
            assert alike(one, among) > SAME
            assert alike(one, other_way) > SAME
        for i, one in enumerate(alone):
            for other in alone[i + 1 :]:
                assert alike(one, other) < OTHER

    def test_whether_a_long_text_is_read_in_parts_or_not(self, plain: Model, make: Make) -> None:
        (tokens,) = texts(plain, 400)
        in_parts, whole = make(plain), make(plain, batch_size=512)
        assert in_parts.plan().fill == 64
        assert alike(vectors(in_parts, [tokens])[0], vectors(whole, [tokens])[0]) > SAME
        assert alike(vectors(in_parts, [tokens])[0], vectors(in_parts, [tokens[:300]])[0]) < SAME

    def test_whatever_was_read_before(self, any_kind: Model, make: Make) -> None:
        engine = make(any_kind)
        inputs = texts(any_kind, 30, 50, seed=2)
        first = vectors(engine, inputs)
        vectors(engine, texts(any_kind, *[20] * 40, seed=3))
        assert np.array_equal(vectors(engine, inputs), first)

    def test_a_word_more_is_another_one(self, any_kind: Model, make: Make) -> None:
        (tokens,) = texts(any_kind, 6)
        engine = make(any_kind)
        assert alike(vectors(engine, [tokens])[0], vectors(engine, [[*tokens, 7]])[0]) < SAME


class TestPooling:
    def test_by_the_file_by_hand_and_without_either(self, folder: Path, make: Make) -> None:
        found = {}
        for name, said in (("mean", 1), ("cls", 2), ("last", 3), ("silent", None)):
            path = folder / f"encoder-{name}.gguf"
            write_encoder(path, said)
            with Model.load(path) as model:
                (tokens,) = texts(model, 12)
                with make(model) as engine:
                    found[name] = vectors(engine, [tokens])[0]
                with make(model, pooling="cls") as engine:
                    found[f"{name} by hand"] = vectors(engine, [tokens])[0]
        assert alike(found["silent"], found["mean"]) > SAME
        assert alike(found["mean by hand"], found["cls"]) > SAME
        assert alike(found["mean"], found["cls"]) < SAME
        assert alike(found["cls"], found["last"]) < SAME

    def test_a_reranker_is_refused(self, folder: Path, make: Make) -> None:
        path = folder / "reranker.gguf"
        write_encoder(path, 4)
        with Model.load(path) as model, make(model) as engine:
            with pytest.raises(InvalidRequest, match="reranker"):
                engine.start()
            with pytest.raises(InvalidRequest, match="reranker"):
                engine.submit([[5]])

    @pytest.mark.parametrize(
        ("pooling", "expected"), [("mean", [3.0, 4.0]), ("cls", [1.0, 2.0]), ("last", [5.0, 6.0])]
    )
    def test_part_by_part(self, pooling: str, expected: list[float]) -> None:
        rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        for cuts in ([rows], [rows[:1], rows[1:]], [rows[:1], rows[1:2], rows[2:]]):
            pooler = Pooler(pooling, 2)  # type: ignore[arg-type]
            for part in cuts:
                pooler.add(part)
            assert pooler.vector().tolist() == expected
        assert normalized(np.zeros(2, np.float32)).tolist() == [0, 0]


class TestManyRequests:
    def test_three_hundred_one_after_the_other(self, plain: Model, make: Make) -> None:
        engine = make(plain)
        (tokens,) = texts(plain, 5)
        first = vectors(engine, [tokens])
        for _ in range(300):
            assert np.array_equal(vectors(engine, [tokens]), first)
        stats = engine.stats()
        assert (stats.embedding_requests_total, stats.embedding_tokens_total) == (301, 301 * 5)
        assert stats.embedding_waiting == 0

    @pytest.mark.parametrize("kind", ["plain", "encoder"])
    def test_of_eight_threads_at_once(self, kind: str, request: pytest.FixtureRequest, make: Make) -> None:
        model = request.getfixturevalue(kind)
        engine = make(model)
        inputs = texts(model, *range(1, 25))
        expected = [vectors(engine, [tokens])[0] for tokens in inputs]

        def ask(seed: int) -> float:
            rng = random.Random(seed)
            worst = 1.0
            for _ in range(15):
                chosen = rng.sample(range(len(inputs)), 3)
                got = vectors(engine, [inputs[i] for i in chosen])
                worst = min(worst, *(alike(v, expected[i]) for v, i in zip(got, chosen, strict=True)))
            return worst

        with ThreadPoolExecutor(8) as pool:
            assert min(pool.map(ask, range(8))) > SAME

    def test_a_small_request_does_not_wait_for_a_thousand_texts(self, plain: Model, make: Make) -> None:
        turns = Turns()
        engine = make(plain, turns)
        engine.start()
        with turns:
            large = engine.submit([[7] * 64] * 2000)  # each fills a decode
            until_in_line(turns)
            small = engine.submit(texts(plain, 3))
        assert len(small.result(60)) == 1
        assert not large.done()
        assert large.cancel()

    def test_more_than_the_queue_holds(self, plain: Model, make: Make) -> None:
        turns = Turns()
        engine = make(plain, turns, queue_limit=2)
        engine.start()
        with turns:  # nothing is decoded meanwhile
            taken = [engine.submit([[7]]) for _ in range(3)]
            with pytest.raises(QueueFull) as caught:
                engine.submit([[7]])
        assert caught.value.waiting == 2
        assert [len(one.result(60)) for one in taken] == [1, 1, 1]


class TestWhoeverGoes:
    def test_is_not_computed_for(self, plain: Model, make: Make) -> None:
        turns = Turns()
        engine = make(plain, turns)
        engine.start()
        with turns:
            gone = engine.submit(texts(plain, *[400] * 200))
            until_in_line(turns)
            stays = engine.submit([[7, 8, 9]])
            assert gone.cancel()
        assert len(stays.result(60)) == 1
        assert engine.submit([[7]]).result(60)
        stats = engine.stats()
        assert (stats.embedding_requests_total, stats.embedding_tokens_total) == (2, 4)

    def test_closing_ends_what_is_open(self, plain: Model, make: Make) -> None:
        engine = make(plain)
        engine.start()
        open_ones = [engine.submit(texts(plain, *[400] * 50)) for _ in range(4)]
        engine.close(grace=0)
        for one in open_ones:
            with pytest.raises(ShuttingDown):
                one.result(0)
        with pytest.raises(ShuttingDown):
            engine.submit([[7]])

    def test_closing_does_not_wait_for_the_end_of_a_long_text(self, plain: Model, make: Make) -> None:
        turns = Turns()
        engine = make(plain, turns)
        engine.start()
        with turns:
            begun = engine.submit(texts(plain, 500))
            until_in_line(turns)
            closer = threading.Thread(target=engine.close, args=(0,))
            closer.start()
            while not engine._closing:
                time.sleep(0.001)
        closer.join(60)
        with pytest.raises(ShuttingDown):
            begun.result(0)

    def test_closing_gives_time_to_finish(self, plain: Model, make: Make) -> None:
        engine = make(plain)
        one = engine.submit(texts(plain, *[20] * 30))
        engine.close(grace=60)
        assert len(one.result(0)) == 30

    def test_closing_what_was_never_used(self, plain: Model, make: Make) -> None:
        make(plain).close()


class TestFailures:
    def test_end_only_the_requests_of_that_decode(
        self, plain: Model, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make(plain)
        (good,) = vectors(engine, [[7, 8, 9]])
        decode = EmbeddingContext.decode
        contexts: list[EmbeddingContext] = []

        def fail_once(context: EmbeddingContext, batch: Batch) -> Vectors:
            contexts.append(context)
            if len(contexts) == 1:
                raise NoRoom("no free cells, says the test")
            return decode(context, batch)

        monkeypatch.setattr(EmbeddingContext, "decode", fail_once)
        hit: Future[list[Vector]] = engine.submit(texts(plain, 64))  # it fills a decode, so it is taken alone
        other = engine.submit([[7, 8, 9]])
        with pytest.raises(EngineFailed, match="no free cells, says the test"):
            hit.result(60)
        assert alike(normalized(other.result(60)[0]), good) > SAME
        assert contexts[1] is not contexts[0]

    def test_numbers_that_are_none(self, plain: Model, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing = np.full((1, 64), np.nan, np.float32)
        monkeypatch.setattr(EmbeddingContext, "decode", lambda _context, _batch: nothing)
        with pytest.raises(EngineFailed, match="not finite"):
            make(plain).submit([[7]]).result(60)

    @pytest.mark.parametrize(
        ("inputs", "says"),
        [
            pytest.param([[7], []], "input 1 holds no token", id="empty"),
            pytest.param([[-1]], "outside", id="negative"),
            pytest.param([[7], [10**9]], "outside", id="beyond the vocabulary"),
        ],
    )
    def test_bad_inputs(self, plain: Model, make: Make, inputs: list[list[int]], says: str) -> None:
        with pytest.raises(InvalidRequest, match=says):
            make(plain).submit(inputs)

    def test_an_encoder_takes_no_more_than_it_was_trained_for(self, encoder: Model, make: Make) -> None:
        engine = make(encoder, ctx_size=4096)
        assert vectors(engine, texts(encoder, TRAINED))
        with pytest.raises(InputTooLong, match="at most 128 tokens here, and the input at index 1 has 129"):
            engine.submit(texts(encoder, 5, TRAINED + 1))

    def test_an_encoder_can_not_chat(self, encoder: Model) -> None:
        with pytest.raises(ModelUnsupported, match="give it by --embedding-model"):
            Engine(encoder, EngineConfig(ctx_size=128)).start()


class TestBesideChats:
    def test_both_get_their_turns(self, plain: Model) -> None:
        prompt = tuple(texts(plain, 50)[0])
        request = Request(prompt, max_tokens=60, ignore_eos=True)
        inputs = texts(plain, *[200] * 20)
        with Engine(plain, EngineConfig(ctx_size=1024, threads=2)) as engine:
            config = EmbeddingConfig(ctx_size=512, threads=2)
            with EmbeddingEngine(plain, config, engine.turns, lambda: engine.stats().running) as embeddings:
                expected = vectors(embeddings, inputs)
                chats = [engine.submit(request) for _ in range(3)]
                beside = vectors(embeddings, inputs)
                assert [gather(chat).usage.completion_tokens for chat in chats] == [60] * 3
        assert min(map(alike, expected, beside)) > SAME

    def test_whoever_waits_comes_before_whoever_comes_again(self) -> None:
        turns, order = Turns(), []

        def wait() -> None:
            with turns:
                order.append("waited")

        thread = threading.Thread(target=wait)
        with turns:
            thread.start()
            until_in_line(turns)
            order.append("first")
        with turns:
            order.append("again")
        thread.join()
        assert order == ["first", "waited", "again"]


def test_a_tokenizer_of_words(encoder: Model) -> None:
    tokens = encoder.vocab.tokenize("The cat sat.", add_special=True, parse_special=True)
    assert [VOCABULARY[t] for t in tokens] == ["[CLS]", "▁the", "▁cat", "▁sat", "▁.", "[SEP]"]
    assert tokens[0] == CLS
