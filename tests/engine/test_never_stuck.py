"""Full memory, gone clients, overload, shutdown: the engine goes on, and says what happened."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from tests.engine.conftest import GREEDY
from tests.oracle.reference import Reference, distance, recording

from onceread.engine.engine import Engine
from onceread.engine.errors import Cancelled, ContextLengthExceeded, InvalidRequest, QueueFull, ShuttingDown
from onceread.engine.request import DoneEvent, Request, TextEvent, gather
from onceread.engine.scheduler import Scheduler
from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.model import Model
from onceread.native.params import Constraint, SamplingParams

pytestmark = pytest.mark.model
MakeEngine = Callable[..., Engine]


def forever(prompt: list[int], **changes: int) -> Request:
    """A request that goes on until it is stopped or the window is full."""
    return Request(tuple(prompt), GREEDY, ignore_eos=True, **changes)


def test_replies_that_outgrow_the_context_step_aside_and_come_back_unharmed(
    model: Model, make_engine: MakeEngine, tokens: list[int]
) -> None:
    engine = make_engine(ctx_size=512)
    prompts = [tuple(tokens[i * 100 : i * 100 + 100]) for i in range(4)]
    with recording() as traces:
        handles = [engine.submit(Request(p, GREEDY, 60, ignore_eos=True)) for p in prompts]
        answers = [gather(h) for h in handles]
    stats = engine.stats()
    assert stats.set_aside_total > 0, "they fitted: the test shows nothing"
    assert [a.usage.completion_tokens for a in answers] == [60] * 4
    assert [a.usage.evaluated_tokens for a in answers] == [100] * 4
    assert stats.prompt_evaluated_total == 400
    reference = Reference(model)
    try:
        assert max(distance(traces[(id(h), 0)], reference) for h in handles) < 2.5
    finally:
        reference.close()


def test_one_reply_may_fill_the_whole_window(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(ctx_size=256)
    done = gather(engine.submit(forever(tokens[:200])))
    assert done.usage.completion_tokens == engine.limit - 200
    assert done.reasons == ["length"]


def test_residents_give_way(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(ctx_size=512)
    for i in range(6):
        gather(engine.submit(Request(tuple(tokens[i * 200 : i * 200 + 200]), GREEDY, 2)))
    assert engine.stats().evictions_total >= 4
    assert gather(engine.submit(Request(tuple(tokens[1000:1200]), GREEDY, 2))).usage.evaluated_tokens == 1


def test_ids_give_way_too(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(max_residents=2, parallel=1)
    for i in range(8):
        gather(engine.submit(Request(tuple(tokens[i * 30 : i * 30 + 30]), GREEDY, 2)))
    assert engine.stats().sequences_used <= 3


def test_what_can_never_fit_is_refused_with_both_figures(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(ctx_size=512)
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.submit(Request(tuple(tokens[:512]), GREEDY))
    assert (caught.value.n_prompt, caught.value.limit) == (512, 512)
    assert gather(engine.submit(Request(tuple(tokens[:511]), GREEDY))).usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request(()), "prompt"),
        (Request((-1,)), "prompt"),
        (Request((10**9,)), "prompt"),
        (Request((1,), n=0), "n"),
        (Request((1,), max_tokens=-1), "max_tokens"),
        (Request((1,), SamplingParams(constraint=Constraint("gbnf", "root ::= ("))), "grammar"),
        (Request((1,), SamplingParams(logit_bias=((-5, 1.0),))), "logit_bias"),
    ],
)
def test_what_makes_no_sense_is_refused(make_engine: MakeEngine, request_: Request, param: str) -> None:
    engine = make_engine(ctx_size=256)
    with pytest.raises(InvalidRequest) as caught:
        engine.submit(request_)
    assert caught.value.param == param


def test_a_cancelled_reading_stops_and_what_was_read_is_kept(
    make_engine: MakeEngine, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(batch_size=128)
    handles = []
    decoded: list[int] = []
    plain = Context.decode

    def decode(self: Context, batch: Batch) -> None:
        plain(self, batch)
        decoded.append(batch.n)
        if len(decoded) == 3:
            handles[0].cancel()

    monkeypatch.setattr(Context, "decode", decode)
    handles.append(engine.submit(Request(tuple(tokens[:1000]), GREEDY, 4)))
    with pytest.raises(Cancelled):
        gather(handles[0])
    assert decoded == [128] * 3
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.prompt_evaluated_total, stats.cached_context_total) == (
        384,
        384,
        0,
    )
    again = gather(engine.submit(Request(tuple(tokens[:1000]), GREEDY, 1)))
    assert again.usage.cached_tokens == 384


def test_fifty_clients_that_leave_at_random_moments(
    make_engine: MakeEngine, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(ctx_size=2048)
    rng = random.Random(3)
    handles: list = []
    plain = Scheduler.turn

    def turn(self: Scheduler) -> None:
        for handle in handles:
            if rng.random() < 0.08:
                handle.cancel()
        plain(self)

    monkeypatch.setattr(Scheduler, "turn", turn)
    for i in range(50):
        start = rng.randrange(1000)
        handles.append(engine.submit(forever([900 + i, *tokens[start : start + rng.randrange(1, 150)]])))
    ends = [next(e for e in h if isinstance(e, DoneEvent)) for h in handles]
    assert all(isinstance(e.error, Cancelled) for e in ends)
    monkeypatch.undo()
    done = gather(engine.submit(Request(tuple(tokens[:50]), GREEDY, 5)))
    assert done.usage.completion_tokens == 5
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.set_aside) == (0, 0, 0)
    assert stats.sequences_used == stats.residents


def test_a_full_queue_says_so(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine(queue_limit=2, parallel=1)
    running = engine.submit(forever(tokens[:20]))
    next(e for e in running if isinstance(e, TextEvent))
    waiting = [engine.submit(forever(tokens[:30])) for _ in range(2)]
    with pytest.raises(QueueFull) as caught:
        engine.submit(forever(tokens[:40]))
    assert caught.value.retry_after >= 1
    for handle in [running, *waiting]:
        handle.cancel()


def test_whoever_finds_a_free_slot_does_not_count_as_waiting(
    make_engine: MakeEngine, tokens: list[int]
) -> None:
    engine = make_engine(queue_limit=1)
    handles = [engine.submit(Request(tuple(tokens[:10]), GREEDY, 1)) for _ in range(4)]
    assert [gather(h).usage.completion_tokens for h in handles] == [1] * 4


def test_a_long_prompt_does_not_stall_a_stream(
    make_engine: MakeEngine, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(slice_seconds=0.0, min_slice=48)
    stream = engine.submit(forever(tokens[:20]))
    next(e for e in stream if isinstance(e, TextEvent))
    batches: list[list[int]] = []
    plain = Context.decode

    def decode(self: Context, batch: Batch) -> None:
        batches.append(batch._seq_id[: batch.n].tolist())
        plain(self, batch)

    monkeypatch.setattr(Context, "decode", decode)
    long = engine.submit(Request(tuple(tokens[100:1100]), GREEDY, 1))
    gather(long)
    stream.cancel()
    reading = [b for b in batches if len(b) > 1]
    assert len(reading) >= 20
    assert all(len(b) <= 1 + 48 and b.count(b[0]) == 1 for b in reading), "a slice without the stream's token"


def test_a_short_prompt_does_not_wait_for_a_long_one(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine()
    long = engine.submit(Request(tuple(tokens[:1500]), GREEDY, 1))
    short = engine.submit(Request((7, *tokens[:30]), GREEDY, 1))
    order: list[str] = []
    threads = [
        threading.Thread(target=lambda h=h, name=name: (gather(h), order.append(name)))
        for h, name in ((long, "long"), (short, "short"))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert order == ["short", "long"]


def test_closing_gives_grace_then_says_so(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine()
    quick = engine.submit(Request(tuple(tokens[:20]), GREEDY, 2))
    endless = engine.submit(forever(tokens[:30]))
    engine.close(grace=1.0)
    assert gather(quick).usage.completion_tokens == 2
    with pytest.raises(ShuttingDown, match="not finished"):
        gather(endless)
    with pytest.raises(ShuttingDown):
        engine.submit(Request((1,)))
