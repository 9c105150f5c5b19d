"""A node's cache under many conversations, simulated: the real tree and store, and states that are only lengths.

The trace is made up, and these are its parameters (`Traffic`): assistants with a system prompt each, chosen by
Zipf's law; conversations over them that come one after the other, talk for a few turns with pauses in between, so
that many are open at a time, come back later or not, and sometimes branch where their user edits a message.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from onceread.cache.cuts import Cutter, Tokens
from onceread.cache.memory import NODE_BYTES
from onceread.cache.store import Store

END = 2  # the token that ends a message
_VOCABULARY = 50_000
_ENDLESS = 1 << 60
_STATE = 23_040  # bytes of a token's state: SmolLM2-135M, 16 bits


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who asks what. Tokens and turns are means; lengths are exponential around them."""

    conversations: int = 10_000
    seed: int = 1
    assistants: int = 200  # system prompts
    zipf: float = 1.1  # the nth assistant is chosen in proportion to n ** -zipf
    system: int = 600
    message: int = 60
    reply: int = 120
    turns: int = 6
    open_at_once: int = 200  # conversations between whose turns the others come
    returns: float = 0.2  # of conversations go on once more, much later
    edits: float = 0.1  # of turns replace the one before instead of following it
    state: int = _STATE


class _State:
    """A blob of which only the length is kept: what the store asks of one."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


@dataclass(slots=True)
class Outcome:
    """What a store of one size made of the trace."""

    budget: int  # bytes
    requests: int = 0
    prompt: int = 0  # tokens
    known: int = 0  # of them, that were in the store
    stored: int = 0  # bytes at the end
    tokens: int = 0  # in it
    evictions: int = 0
    outgrown: int | None = None  # conversations that had begun when the first chunk had to go


def trace(traffic: Traffic) -> Iterator[tuple[int, Tokens, Tokens]]:
    """Requests in their order: how many conversations have begun, the prompt, and the prompt with its reply."""
    rng = random.Random(traffic.seed)
    tokens = np.random.default_rng(traffic.seed)

    def message(mean: float) -> Tokens:
        made = tokens.integers(10, _VOCABULARY, 4 + int(rng.expovariate(1 / mean))).astype(np.int32)
        made[-1] = END
        return made

    systems = [message(traffic.system) for _ in range(traffic.assistants)]
    weights = [(n + 1) ** -traffic.zipf for n in range(traffic.assistants)]
    begun = order = 0
    # Open conversations by when they speak next; time is counted in requests.
    waiting: list[tuple[float, int, Tokens, Tokens, int]] = []
    now = 0.0
    while begun < traffic.conversations or waiting:
        now += 1
        if begun < traffic.conversations and (len(waiting) < traffic.open_at_once or waiting[0][0] > now):
            begun += 1
            history = before = rng.choices(systems, weights)[0]
            left = 1 + int(rng.expovariate(1 / traffic.turns))
        else:
            at, _order, history, before, left = heapq.heappop(waiting)
            now = max(now, at)
        if rng.random() < traffic.edits:
            history = before
        prompt = np.concatenate([history, message(traffic.message)])
        whole = np.concatenate([prompt, message(traffic.reply)])
        yield begun, prompt, whole
        order += 1
        if left > 1:
            pause = rng.expovariate(1 / traffic.open_at_once)
            heapq.heappush(waiting, (now + pause, order, whole, history, left - 1))
        elif left == 1 and rng.random() < traffic.returns:
            pause = rng.uniform(1, 20) * traffic.open_at_once
            heapq.heappush(waiting, (now + pause, order, whole, history, 0))


def played(traffic: Traffic, budget: int) -> Outcome:
    """The trace on one tier of ``budget`` bytes, with the store's own eviction."""

    def cut(blob: bytes, n: int) -> tuple[bytes, bytes]:
        first = n * traffic.state
        return _blob(first), _blob(len(blob) - first)

    store = Store(
        fingerprint=bytes(32),
        label="simulated",
        spelled=[b" %d" % i for i in range(_VOCABULARY)],
        cutter=Cutter([END]),
        cut=cut,
        memory_bytes=budget,
    )
    outcome = Outcome(budget)
    for begun, prompt, whole in trace(traffic):
        outcome.requests += 1
        outcome.prompt += len(prompt)
        outcome.known += min(store.match("n", prompt).length, len(prompt) - 1)
        store.use("n", prompt, text=True)
        while (gap := store.gap("n", whole, final=True)) is not None:
            if not store.put("n", whole, *gap, _blob((gap[1] - gap[0]) * traffic.state)):
                break
        if outcome.outgrown is None and budget < _ENDLESS and store.stats().memory.evictions_total:
            outcome.outgrown = begun
    memory = store.stats().memory
    outcome.stored, outcome.tokens, outcome.evictions = memory.bytes, memory.tokens, memory.evictions_total
    store.close()
    return outcome


def _blob(size: int) -> bytes:
    return cast("bytes", _State(size))


def scaled(traffic: Traffic, say: Callable[[str], object] = lambda _line: None) -> str:
    """A table in Markdown: shares of the size that would hold everything, and what is known at each."""
    say(f"playing {traffic.conversations:,} conversations on a store without limit")
    whole = played(traffic, _ENDLESS)
    lines = [
        f"{traffic.conversations:,} conversations, {whole.requests:,} requests, {whole.prompt:,} prompt tokens; "
        f"{whole.tokens:,} distinct tokens take {_gib(whole.stored)} at {traffic.state:,} bytes each, "
        f"{whole.stored / (whole.tokens * traffic.state):.3f} of the bare states.",
        "",
        "| budget | conversations until the first eviction | prompt tokens known | of what could be | evictions |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for share in (0.02, 0.1, 0.25, 0.5):
        budget = int(whole.stored * share) + NODE_BYTES
        say(f"playing them on {_gib(budget)}")
        o = played(traffic, budget)
        lines.append(
            f"| {_gib(budget)} | {'never' if o.outgrown is None else f'{o.outgrown:,}'} | {o.known / o.prompt:.1%} "
            f"| {o.known / whole.known:.1%} | {o.evictions:,} |"
        )
    each = whole.stored / traffic.conversations
    lines += [
        "",
        f"A conversation adds {each / 2**20:.1f} MiB: 20 GiB on disk hold {20 * 2**30 / each:,.0f} of them, "
        f"and 4 GiB in RAM {4 * 2**30 / each:,.0f}.",
    ]
    return "\n".join(lines) + "\n"


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
