"""Conversations in real text, sampled in tokens that no tokenizer would make, and sent back as text."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from onceread.chat.prompt import PromptTokenizer
from onceread.chat.template import ChatTemplate
from onceread.engine.alignment import Aligner, Join
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Completed, Request, gather
from onceread.engine.sequence import Tokens, common_prefix
from onceread.native.model import Model
from onceread.native.params import Constraint, SamplingParams
from tests.oracle.realtexts import some_text
from tests.oracle.reference import Reference, Trace, distance, recording
from tests.tiny.plain import Splitter, plain_model

pytestmark = [pytest.mark.model, pytest.mark.soak]

MIB = 1024 * 1024
TURNS = 3
GREEDY = SamplingParams(temperature=0)
# What the model writes itself where it does: any mixture of these, split as it is sampled.
WRITING = Constraint("gbnf", "root ::= [a-zA-Z0-9 .,\\n\\t灯台守é😀]{40,120}")
RECORD = Callable[[str, object], None]


@pytest.fixture(scope="module")
def plain(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("plain"), smollm2_path) as model:
        yield model


@dataclass
class Conversation:
    """What its client knows, as text, and what lies in the cache, as tokens."""

    messages: list[dict[str, str]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    sampled: list[tuple[int, int]] = field(default_factory=list)  # positions in the path
    lost: int = 0  # tokens that were sampled and have been read again, split otherwise

    def find_again(self, tokens: list[int], cached: int) -> int:
        """How many of the sampled tokens a request had cached that reads ``tokens``. The others are lost for good."""
        same = min(cached, common_prefix(np.array(self.path), np.array(tokens)))
        written = self.written
        self.sampled = [(start, min(end, same)) for start, end in self.sampled if start < same]
        kept = sum(end - start for start, end in self.sampled)
        self.lost = written - kept
        return kept

    @property
    def written(self) -> int:
        """How many tokens were sampled in it."""
        return self.lost + sum(end - start for start, end in self.sampled)


class Talking:
    """Clients in rotation over one engine, which is restarted between their turns."""

    def __init__(self, model: Model, folder: Path, rng: random.Random) -> None:
        self._model = model
        self._rng = rng
        self._config = EngineConfig(ctx_size=8192, cache_ram=512 * MIB, cache_dir=folder, check=True)
        self._template = ChatTemplate.of_model(model)
        self._prompts = PromptTokenizer(model.vocab)
        self._splitter = Splitter(model.vocab)
        self.engine = Engine(model, self._config).start()
        self.sampled = self.kept = self.unusual = 0
        self.sources: Counter[str] = Counter()

    def restart(self) -> None:
        self.engine.close()
        self.engine = Engine(self._model, self._config).start()

    def turn(self, chat: Conversation, *, writes: bool) -> Trace:
        """The client says something and gets a reply; what it got it will send back with the next turn."""
        chat.messages.append({"role": "user", "content": some_text(self._rng)})
        prompt = self._prompts.chat(self._template.render(chat.messages))
        seed = self._rng.randrange(2**31)
        sampling = SamplingParams(temperature=1.5, seed=seed, constraint=WRITING) if writes else GREEDY
        trace, done = self._ask(Request(prompt, sampling, None if writes else 4, logprobs=0))
        assert spelled(self._model, trace.prompt) == spelled(self._model, prompt)
        self.sampled += chat.written
        self.kept += chat.find_again(trace.prompt, done.usage.cached_tokens)
        for source in ("context", "memory", "disk"):
            self.sources[source] += getattr(done.usage.cached, source)
        if writes:
            text = done.texts[0]
            chat.path = trace.prompt + [entry.token for entry in done.logprobs[0]]
        else:
            text = some_text(self._rng)
            reply = self._splitter.by_chance(text, self._rng)
            # What it begins with may be known in other tokens: then it is not split anew.
            chat.path = self._ask(Request((*trace.prompt, *reply), GREEDY, 1))[0].prompt
        reply = chat.path[len(trace.prompt) :]
        self.unusual += reply != self._model.vocab.tokenize(text, add_special=False, parse_special=False)
        chat.sampled.append((len(trace.prompt), len(chat.path)))
        chat.messages.append({"role": "assistant", "content": text})
        return trace

    def _ask(self, request: Request) -> tuple[Trace, Completed]:
        with recording() as traces:
            done = gather(self.engine.submit(request))
        (trace,) = traces.values()
        return trace, done


def spelled(model: Model, tokens: list[int] | tuple[int, ...]) -> bytes:
    """As text, control tokens as something that no text can be."""
    vocab = model.vocab
    return b"".join(b"\xff%d\xff" % t if vocab.is_control(t) else vocab.pieces[t] for t in tokens)


def test_of_what_was_sampled_nearly_all_is_reused(
    plain: Model, tmp_path: Path, soak_scale: float, soak_seed: int, record_property: RECORD
) -> None:
    rng = random.Random(soak_seed)
    total = 500 if soak_scale == 1 else 30
    chats = [Conversation() for _ in range(total)]
    talking = Talking(plain, tmp_path, rng)
    reference = Reference(plain, n_ctx=8192)
    worst = noise = 0.0
    checked = 0
    for turn in range(TURNS):
        if turn:
            talking.restart()
        for i in rng.sample(range(total), total):
            trace = talking.turn(chats[i], writes=(i + turn) % 5 == 0)
            if turn == 0 and i < 3:
                noise = max(noise, reference.noise(trace.prompt[:-16], trace.prompt[-16:]))
            elif turn and i % 6 == turn:
                worst = max(worst, distance(trace, reference))
                checked += 1
                assert worst <= 2 * noise
    talking.engine.close()
    reference.close()
    record_property(
        "conversations", f"{total} of {TURNS} turns, {checked} replies held against a fresh context"
    )
    record_property("sampled tokens reused", f"{talking.kept} of {talking.sampled}")
    record_property("replies split unusually", f"{talking.unusual} of {total * TURNS}")
    record_property("from", dict(talking.sources))
    record_property("worst logit distance", f"{worst:.3f} (noise {noise:.3f})")
    assert talking.unusual > 0.9 * total * TURNS, (
        "replies that split as the tokenizer splits them prove nothing"
    )
    assert talking.sources["disk"], f"the disk served nothing: {talking.sources}"
    assert talking.kept >= 0.995 * talking.sampled


def test_without_alignment_it_would_be_lost(
    plain: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: joined by tokens alone, little of what was sampled is found again."""

    def by_tokens(self: Aligner, path: Tokens, prompt: Tokens) -> Join:
        n = common_prefix(path, prompt)
        return Join(n, n)

    monkeypatch.setattr(Aligner, "join", by_tokens)
    rng = random.Random(1)
    talking = Talking(plain, tmp_path, rng)
    for _ in range(4):
        chat = Conversation()
        for _ in range(TURNS):
            talking.turn(chat, writes=False)
    talking.engine.close()
    assert talking.kept < 0.5 * talking.sampled
