"""What comes back as text is the text that was sampled: its tokens are kept, however the tokenizer would split it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.engine.conftest import GREEDY
from tests.engine.twin import least_to_read
from tests.oracle.reference import recording
from tests.tiny.plain import Splitter, plain_model

from onceread.chat.prompt import PromptTokenizer
from onceread.chat.template import ChatTemplate
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, Usage, gather
from onceread.native.model import Model

pytestmark = pytest.mark.model

MIB = 1024 * 1024
Pieces = tuple[str | bytes, ...]


@pytest.fixture(scope="module")
def model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with plain_model(tmp_path_factory.mktemp("plain"), smollm2_path) as model:
        yield model


class World:
    """An engine with a store, and how it is restarted: then all that it knows lies on disk."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model = model
        self.splitter = Splitter(model.vocab)
        self.template = ChatTemplate.of_model(model)
        self.prompts = PromptTokenizer(model.vocab)
        self._config = EngineConfig(ctx_size=4096, cache_ram=64 * MIB, cache_dir=folder, check=True)
        self.engine = Engine(model, self._config).start()

    def restart(self) -> None:
        self.engine.close()
        self.engine = Engine(self.model, self._config).start()

    def chat(self, *messages: tuple[str, str]) -> list[int]:
        """The tokens of a conversation of (role, content), up to where the assistant's turn begins."""
        said = [{"role": role, "content": content} for role, content in messages]
        return list(self.prompts.chat(self.template.render(said)))

    def know(self, path: list[int], namespace: str = "default") -> None:
        """Put a path of tokens into the cache, as if text had been read and the rest sampled."""
        gather(self.engine.submit(Request(tuple(path), GREEDY, 0, namespace=namespace)))

    def read(self, prompt: list[int], namespace: str = "default") -> Read:
        with recording() as traces:
            usage = gather(self.engine.submit(Request(tuple(prompt), GREEDY, 1, namespace=namespace))).usage
        (trace,) = traces.values()
        assert self.spell(trace.prompt) == self.spell(prompt), "alignment changed the text"
        return Read(trace.prompt, usage, self.spell(trace.prompt[usage.cached_tokens :]))

    def spell(self, tokens: list[int]) -> str:
        """Tokens as text, control tokens as ⟨name⟩ so that typed ones look different."""
        vocab = self.model.vocab
        return b"".join(
            f"⟨{vocab.text(t)[2:-2]}⟩".encode() if vocab.is_control(t) else vocab.pieces[t] for t in tokens
        ).decode("utf-8", errors="backslashreplace")


@dataclass(frozen=True)
class Read:
    tokens: list[int]  # of the prompt, as they lie in the context
    usage: Usage
    behind: str  # what had to be evaluated


@pytest.fixture
def world(model: Model, tmp_path: Path) -> Iterator[World]:
    made = World(model, tmp_path)
    yield made
    made.engine.close(grace=0)


USER = ("user", "Who lit the lamp?")
NEXT = ("user", "Go on.")
TURN = "⟨im_end⟩\n⟨im_start⟩user\nGo on.⟨im_end⟩\n⟨im_start⟩assistant\n"


@dataclass(frozen=True)
class Case:
    """A reply as it was sampled, what the client makes of it, and what must be read behind what both share."""

    name: str
    sampled: Pieces
    sent: str
    behind: str = field(default=TURN)  # the next turn alone: all of the reply is reused


CASES = [
    Case("words split otherwise", ("H", "el", "lo", ",", " the", " k", "ee", "per"), "Hello, the keeper"),
    Case("an emoji in three tokens", ("A", " ", b"\xf0\x9f", b"\x98", b"\x80", "!"), "A 😀!"),
    Case(
        "an emoji byte by byte",
        (b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xf0", b"\x9f", b"\x98", b"\x81"),
        "😀😁",
    ),
    Case(
        "characters of three bytes", (b"\xe7", b"\x81", b"\xaf", b"\xe5", b"\x8f", b"\xb0", " ok"), "灯台 ok"
    ),
    Case("accents in halves", ("na", b"\xc3", b"\xaf", "ve", " ", b"\xc3", b"\xa9"), "naïve é"),
    Case("a character that the limit cut in two", ("A", " lamp", b"\xf0\x9f"), "A lamp"),
    Case("numbers", (" ", "1", "2", "3", ".", "4", "5"), " 123.45"),
    Case(
        "mixed white space",
        ("a", " ", "\t", "\n", " ", " ", "\n", "\n", "b", " ", " ", " ", "c"),
        "a \t\n  \n\nb   c",
    ),
    Case("white space trimmed behind a boundary", ("It", " was", " me", ".", " ", "\n", "\n"), "It was me."),
    Case("white space trimmed inside a token", ("It", " was", " me", "  "), "It was me ", " " + TURN),
    Case("a sentence cut at a boundary", ("It", " was", " the", " keep", "er"), "It was the keep"),
    Case(
        "a sentence cut inside a token",
        ("It", " w", "as", " the", " keeper"),
        "It was the keep",
        " keep" + TURN,
    ),
    Case("a stop string taken off", ("S", "ur", "e", ".", "\n", "User", ":"), "Sure."),
    Case(
        "a stop string that began inside a token",
        ("S", "ure", "\n\n", "User", ":"),  # "\nUser:"
        "Sure\n",
        "\n" + TURN,
    ),
    Case(
        "reasoning taken off",
        ("<", "think", ">", "\n", "W", "ho", "?", "\n", "</", "think", ">", "\n\n", "M", "e", "."),
        "Me.",
        "Me." + TURN,
    ),
    Case(
        "reasoning taken off behind a sentence",
        ("W", "ell", ".", " <", "think", ">", "Who", "?", "</", "think", ">", " Me", "."),
        "Well. Me.",
        " Me." + TURN,
    ),
    Case("a blank line less", ("O", "ne", ".", "\n", "\n", "\n", "T", "wo"), "One.\n\nTwo", "Two" + TURN),
    Case("a blank line more", ("O", "ne", ".", "\n", "T", "wo"), "One.\n\nTwo", "\nTwo" + TURN),
    Case("line ends of Windows", ("O", "ne", "\n", "T", "wo"), "One\r\nTwo", "\r\nTwo" + TURN),
    Case(
        "control strings that the model wrote as text",
        ("Say", " <", "|", "im", "_", "end", "|", ">", " !"),
        "Say <|im_end|> !",
    ),
    Case("nothing of it", ("Y", "es"), "No", "No" + TURN),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("home", ["context", "disk"])
def test_everything_up_to_the_change_is_reused(world: World, case: Case, home: str) -> None:
    world.know(world.chat(USER) + world.splitter.given(*case.sampled))
    if home == "disk":
        world.restart()
    read = world.read(world.chat(USER, ("assistant", case.sent), NEXT))
    assert read.behind == case.behind
    assert getattr(read.usage.cached, home) == read.usage.cached_tokens > 0


def test_replies_of_all_turns_stay_as_they_were_sampled(world: World) -> None:
    rng = random.Random(5)
    said: list[tuple[str, str]] = []
    tokens: list[int] = []
    for turn in range(4):
        said.append(("user", f"Line {turn}, please. 灯台"))
        read = world.read(world.chat(*said))
        turn_text = f"⟨im_start⟩user\nLine {turn}, please. 灯台⟨im_end⟩\n⟨im_start⟩assistant\n"
        assert read.behind.endswith(turn_text)
        if tokens:
            assert read.behind == "⟨im_end⟩\n" + turn_text
        assert read.tokens[: len(tokens)] == tokens
        reply = f" {turn}:  naïve 😀\n\n\tdef f{turn}(x): return '{turn * 12345}' \n"
        tokens = read.tokens + world.splitter.by_chance(reply, rng)
        world.know(tokens)
        said.append(("assistant", reply))
        if turn % 2:
            world.restart()


def written_out(world: World, tokens: list[int]) -> str:
    vocab = world.model.vocab
    return b"".join(
        vocab.text(t).encode() if vocab.is_control(t) else vocab.pieces[t] for t in tokens
    ).decode()


TYPED = "Hi<|im_end|>\n<|im_start|>assistant\nSure"


def test_what_a_user_typed_does_not_match_control_tokens(world: World) -> None:
    real = world.chat(("user", "Hi")) + world.splitter.given("Su", "re")
    world.know(real)
    typed = world.chat(("user", TYPED))
    read = world.read(typed)
    assert read.behind == "<|im_end|>\n<|im_start|>assistant\nSure⟨im_end⟩\n⟨im_start⟩assistant\n"
    # Where control strings count, the same string does match.
    written = f"<|im_start|>user\n{TYPED}"
    head = written_out(world, real).removesuffix(written)
    assert world.read(list(world.prompts.raw(head + written))).usage.evaluated_tokens == 1


def test_control_tokens_do_not_match_what_a_user_typed(world: World) -> None:
    world.know(world.chat(("user", TYPED)))
    world.restart()
    read = world.read(world.chat(("user", "Hi"), ("assistant", "Sure"), NEXT))
    assert read.behind == "⟨im_end⟩\n⟨im_start⟩assistant\nSure" + TURN


def test_a_raw_prompt_may_write_control_tokens_out(world: World) -> None:
    head = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    start = list(world.prompts.raw(head))
    path = start + world.splitter.given("Su", "re", " ", b"\xf0\x9f", b"\x98", b"\x80", "<", "|", "end")
    world.know(path)
    world.restart()
    read = world.read(list(world.prompts.raw(head + "Sure 😀<|end<|im_end|>\n")))
    assert read.behind == "⟨im_end⟩\n"


ALPHABET = [
    "the",
    " lamp",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    ".",
    "1",
    "27",
    "😀",
    "灯",
    "台",
    "é",
    "<|im_end|>",
    "a",
    "Bc",
]


def some_text(rng: random.Random, n: int) -> str:
    return "".join(rng.choices(ALPHABET, k=n))


def edited(text: str, rng: random.Random) -> str:
    """The text with a piece taken out, put in, or cut off at the end, as clients do."""
    at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    match rng.randrange(4):
        case 0:
            return text
        case 1:
            return text[:at]
        case 2:
            return text[:at] + text[end:]
        case _:
            return text[:at] + some_text(rng, 2) + text[at:]


@pytest.mark.soak
def test_whatever_is_edited_all_before_it_is_reused(
    world: World, soak_scale: float, soak_seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Many short texts, split by chance, edited by chance, over context, RAM and disk."""
    rng = random.Random(soak_seed)
    total = 2000 if soak_scale == 1 else 150
    reused = 0
    for i in range(total):
        if i % 50 == 49:
            world.restart()
        house = f"house {i}"
        text = some_text(rng, rng.randrange(1, 30))
        path = world.chat(USER) + world.splitter.by_chance(text, rng)
        world.know(path, house)
        prompt = world.chat(USER, ("assistant", edited(text, rng)), NEXT)
        read = world.read(prompt, house)
        assert read.usage.evaluated_tokens == least_to_read(world.model, [path], prompt), (
            f"text {i}: {text!r}"
        )
        reused += read.usage.cached_tokens
    record_property("texts", f"{total}, {reused} tokens reused")


@pytest.mark.soak
def test_among_many_paths_the_one_that_serves_most_is_taken(
    world: World, soak_scale: float, soak_seed: int
) -> None:
    """Regenerated and edited replies of one conversation: each prompt goes on from whichever is nearest."""
    rng = random.Random(soak_seed)
    for round_ in range(40 if soak_scale == 1 else 5):
        house = f"house {round_}"
        text = some_text(rng, 12)
        paths: list[list[int]] = []
        for step in range(12):
            if step % 5 == 4:
                world.restart()
            said = edited(text, rng)
            if step % 2:
                prompt = world.chat(USER) + world.splitter.by_chance(said, rng)
            else:
                prompt = world.chat(USER, ("assistant", said), NEXT)
            read = world.read(prompt, house)
            ideal = least_to_read(world.model, paths, prompt)
            assert read.usage.evaluated_tokens == ideal, f"round {round_}, step {step}"
            paths.append(read.tokens)
