"""What a chat costs on one kind of memory, request by request, beside what it could cost at best.

    python -m tests.oracle.chat_costs MODEL.gguf [MODEL.gguf ...]

Ten turns, the last reply three times more, the last message edited three times, back to the branch before the
edits, and after a restart the next turn. "Ideal" is the naive twin's: the tokens that nobody read, and one more
for its logits.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from tests.oracle.reference import recording
from tests.oracle.twin import Twin

GREEDY = SamplingParams(temperature=0)
TURNS = 10
REPLY = 12
Tokens = tuple[int, ...]


class Cost(NamedTuple):
    """One request."""

    what: str
    prompt: int
    evaluated: int
    ideal: int


class Chat:
    """A conversation in tokens, with a model's end of turn after each message."""

    def __init__(self, model: Model, seed: int) -> None:
        self._rng = random.Random(seed)
        self._end = sorted(model.vocab.eog_tokens)[0]
        self._header = self.words(3)  # as a template begins a message
        self.history = (*self.words(60), self._end)

    def words(self, n: int) -> Tokens:
        return tuple(self._rng.randrange(100, 40_000) for _ in range(n))

    def prompt(self) -> Tokens:
        """The history with another message, up to where the reply begins."""
        message = (*self._header, *self.words(self._rng.randint(12, 40)), self._end)
        return self.history + message + self._header

    def replied(self, prompt: Tokens, reply: Tokens) -> None:
        self.history = (*prompt, *reply, self._end)


def costs(model: Model, make_engine: Callable[[], Engine], seed: int = 1) -> list[Cost]:
    """Run it. ``make_engine`` is called at the start and for the restart."""
    chat, twin = Chat(model, seed), Twin()
    found: list[Cost] = []
    engine = make_engine()

    def ask(what: str, prompt: Tokens) -> Tokens:
        with recording() as traces:
            handle = engine.submit(Request(prompt, GREEDY, REPLY, alignable=False, ignore_eos=True))
            usage = gather(handle).usage
            trace = traces[id(handle), 0]
        engine.clear({"nobody"})  # returns when what follows the reply is done
        cost = Cost(what, len(prompt), usage.evaluated_tokens, twin.evaluated(prompt))
        found.append(cost)
        reply = (*trace.tokens, int(trace.logits[-1].argmax()))[:REPLY]
        twin.read(prompt + reply[:-1])
        return reply

    for turn in range(TURNS):
        prompt = chat.prompt()
        before = chat.history
        chat.replied(prompt, ask(f"turn {turn + 1}", prompt))
    for _ in range(3):
        ask("regenerate", prompt)
    last = chat.history
    for _ in range(3):
        chat.history = before
        ask("edit the last message", chat.prompt())
    chat.history = last
    prompt = chat.prompt()
    chat.replied(prompt, ask("back to the older branch", prompt))
    engine.close()
    engine = make_engine()
    ask("the next turn, after a restart", chat.prompt())
    engine.close()
    return found


def overhead(found: list[Cost]) -> float:
    """Tokens a request that were evaluated beyond the ideal, on average."""
    return mean(cost.evaluated - cost.ideal for cost in found)


def main() -> None:
    for path in sys.argv[1:]:
        with Model.load(path) as model, tempfile.TemporaryDirectory() as folder:

            def make(model: Model = model, folder: str = folder) -> Engine:
                config = EngineConfig(ctx_size=4096, cache_ram=2**30, cache_dir=Path(folder), check=True)
                return Engine(model, config).start()

            found = costs(model, make)
            print(
                f"\n{model.name} ({model.memory_kind.value}): {overhead(found):.2f} tokens a request beyond\n"
            )
            print("| request | prompt | evaluated | ideal |\n| --- | ---: | ---: | ---: |")
            for cost in found:
                print(f"| {cost.what} | {cost.prompt} | {cost.evaluated} | {cost.ideal} |")


if __name__ == "__main__":
    main()
