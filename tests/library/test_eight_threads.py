"""Eight threads on one engine, doing all that a `Llama` does, some of them leaving: all end, accounts add up."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.library.test_stepping import Steps, words
from tests.tiny.models import loaded
from tests.tiny.plain import plain_model

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.errors import Cancelled
from onceread.engine.request import DoneEvent, Request, Usage
from onceread.native.params import Constraint, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.soak]

THREADS = 8
CALLS = 1000  # at full scale
CTX = 1536
GRAMMAR = Constraint("gbnf", 'root ::= ("yes" | "no") ", " [a-z]{1,9}')


class Caller:
    """One thread's calls, and what they were told."""

    def __init__(self, engine: Engine, seed: int, calls: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.steps = Steps(engine, namespace="one")
        self.calls = calls
        self.usages: list[Usage] = []
        self.left = self.broken = self.stepped = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            for _ in range(self.calls):
                self.random.choice([self.reply, self.reply, self.reply, self.step, self.step, self.logits])()
        except BaseException as error:  # told of on the test's thread
            self.errors.append(error)
        finally:
            self.steps._end_stepping()

    def prompt(self) -> tuple[int, ...]:
        """One of a few conversations that all threads share, or an own one."""
        base = words(
            self.random.choice([20, 60, 90]), self.random.choice([1, 2, 3, self.random.randrange(10**6)])
        )
        return (*base, *words(self.random.randint(1, 8), self.random.randrange(4)))

    def reply(self) -> None:
        sampling = SamplingParams(
            temperature=self.random.choice([0.0, 1.0]), constraint=self.random.choice([None, None, GRAMMAR])
        )
        hooks: dict[str, Any] = self.random.choice(
            [
                {},
                {},
                {"logits_processor": lambda ids, scores: scores * 0.5},
                {"stopping_criteria": lambda ids, logits: len(ids) % 13 == 0},
                {"logits_processor": self.break_down},
            ]
        )
        leaves = self.random.random() < 0.3
        n = self.random.choice([1, 1, 1, 2])
        request = Request(self.prompt(), sampling, self.random.randint(0, 12), n=n, namespace="one", **hooks)
        handle = self.engine.submit(request)
        events = self.random.randrange(3) if leaves else -1
        for event in handle:
            if events == 0:
                handle.cancel()
            events -= 1
            if isinstance(event, DoneEvent):
                self.usages.append(event.usage)
                self.left += isinstance(event.error, Cancelled)
                self.broken += isinstance(event.error, ArithmeticError)
                if event.error is not None and not isinstance(event.error, Cancelled | ArithmeticError):
                    raise event.error

    def break_down(self, ids: Any, scores: Any) -> Any:
        if self.random.random() < 0.5:
            raise ArithmeticError("on purpose")
        return scores

    def step(self) -> None:
        generator = self.steps.generate(self.prompt(), temp=1.0, reset=self.random.random() < 0.7 or self.far)
        for _ in range(self.random.randint(1, 8)):
            next(generator)
        if self.random.random() < 0.3:
            generator.send(words(5, self.random.randrange(4)))
        self.stepped += 1

    @property
    def far(self) -> bool:
        """Is there no room for another prompt behind what was read?"""
        return self.steps.n_tokens > 300

    def logits(self) -> None:
        prompt = self.prompt()
        self.steps.eval(prompt) if not self.far else self.steps.reset()
        row = np.array(self.steps.eval_logits)
        assert np.isfinite(row).all()
        self.stepped += 1


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_eight_threads_with_everything_mixed_all_end_and_every_token_is_accounted_for(
    tmp_path: Path,
    smollm2_path: Path,
    soak_scale: float,
    soak_seed: int,
    kind: str,
    record_property: Callable[[str, object], None],
) -> None:
    calls = max(50, int(CALLS * soak_scale)) // THREADS
    making = plain_model(tmp_path, smollm2_path) if kind == "plain" else loaded(kind, tmp_path, smollm2_path)
    with making as model:
        config = EngineConfig(
            ctx_size=CTX, parallel=THREADS, batch_size=128, cache_ram=64 * 1024 * 1024, check=True
        )
        with Engine(model, config) as engine:
            callers = [Caller(engine, soak_seed + i, calls) for i in range(THREADS)]
            workers = [threading.Thread(target=caller.run, daemon=True) for caller in callers]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(timeout=250)
                assert not worker.is_alive(), "a caller waits for ever"
            for caller in callers:
                if caller.errors:
                    raise caller.errors[0]
            stats = engine.stats()
    usages = [usage for caller in callers for usage in caller.usages]
    record_property("calls", THREADS * calls)
    record_property("left early", sum(caller.left for caller in callers))
    record_property("ended by a hook that raised", stats.requests_failed)
    record_property(
        "prompt tokens", f"{stats.prompt_evaluated_total} of {stats.prompt_tokens_total} evaluated"
    )
    assert sum(len(caller.usages) + caller.stepped for caller in callers) == THREADS * calls
    assert sum(caller.left for caller in callers) > 0
    assert sum(caller.broken for caller in callers) == stats.requests_failed > 0
    assert (stats.running, stats.waiting, stats.set_aside) == (0, 0, 0)
    assert all(usage.cached_tokens >= 0 for usage in usages)
    evaluated = sum(usage.evaluated_tokens for usage in usages) + sum(c.steps.evaluated for c in callers)
    assert evaluated == stats.prompt_evaluated_total
    cached = stats.cached_context_total + stats.cached_memory_total + stats.cached_disk_total
    assert stats.prompt_tokens_total == stats.prompt_evaluated_total + cached
    assert sum(usage.completion_tokens for usage in usages) == stats.completion_tokens_total
