"""From renderings and raw texts to token ids, on a toy vocabulary and on the demo model's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.fakes import FakeVocab
from tests.server.live import demo_model

from onceread.chat.errors import PromptEmpty
from onceread.chat.prompt import PromptTokenizer
from onceread.chat.rendered import Control, Rendered, Text
from onceread.chat.template import ChatTemplate
from onceread.native.model import Model

START, END = Control(257, "<|im_start|>"), Control(258, "<|im_end|>")


class Toy(FakeVocab):
    """A byte is a token. Counts how often it is asked."""

    def __init__(self, *, add_bos: bool = False, add_eos: bool = False, bos: int = 256) -> None:
        self.add_bos, self.add_eos, self.bos = add_bos, add_eos, bos
        self.asked: list[str] = []

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        assert isinstance(text, str)
        if text:
            self.asked.append(text)
        begin = [self.bos] if add_special and self.add_bos else []
        end = [258] if add_special and self.add_eos else []
        return begin + list(text.encode()) + end


def tokenizer(vocab: Any = None, **options: Any) -> PromptTokenizer:
    return PromptTokenizer(vocab or Toy(), **options)


class TestChat:
    def test_text_stays_text(self) -> None:
        rendered = Rendered((START, Text("<|im_end|>"), END))
        assert tokenizer().chat(rendered) == (257, *b"<|im_end|>", 258)

    @pytest.mark.parametrize(
        ("add_bos", "segments", "tokens"),
        [
            (False, (Text("a"),), (97,)),
            (True, (Text("a"),), (256, 97)),
            (True, (Control(256, "<|endoftext|>"), Text("a")), (256, 97)),
            (True, (END, Text("a")), (256, 258, 97)),
            (True, (), (256,)),
        ],
        ids=["not wanted", "added", "written by the template", "before another control token", "alone"],
    )
    def test_bos(self, add_bos: bool, segments: Any, tokens: tuple[int, ...]) -> None:
        assert tokenizer(Toy(add_bos=add_bos)).chat(Rendered(segments)) == tokens

    def test_nothing_at_all(self) -> None:
        with pytest.raises(PromptEmpty):
            tokenizer().chat(Rendered(()))

    def test_earlier_messages_are_tokenized_once(self) -> None:
        vocab = Toy()
        prompts = tokenizer(vocab)
        turns = [Text(f"message {i}") for i in range(5)]
        for i in range(1, 6):
            prompts.chat(Rendered(tuple(turns[:i])))
        assert vocab.asked == [turn.text for turn in turns]

    def test_what_is_remembered_is_bounded(self) -> None:
        vocab = Toy()
        prompts = tokenizer(vocab, cache_bytes=10_000)
        for _ in range(2):
            for i in range(50):
                prompts.chat(Rendered((Text(f"{i:03}" * 100),)))
        assert len(vocab.asked) == 100  # least recently used: each was forgotten before it came again
        prompts.chat(Rendered((Text("049" * 100),)))
        assert len(vocab.asked) == 100


class TestRaw:
    @pytest.mark.parametrize(
        ("vocab", "text", "tokens"),
        [
            (Toy(), "a", (97,)),
            (Toy(), "a<|im_end|>b", (97, 258, 98)),
            (Toy(), "<|im_start|><|im_end|>", (257, 258)),
            (Toy(), "<|im_end|", tuple(b"<|im_end|")),
            (Toy(), "", (256,)),
            (Toy(add_bos=True), "a", (256, 97)),
            (Toy(add_bos=True), "<|endoftext|>a", (256, 97)),
            (Toy(add_bos=True, add_eos=True), "a", (256, 97, 258)),
            (Toy(add_eos=True), "a", (97, 258)),
        ],
        ids=[
            "text",
            "a control token",
            "control tokens alone",
            "a part of one",
            "nothing",
            "BOS",
            "BOS is not doubled",
            "BOS and EOS",
            "EOS",
        ],
    )
    def test_tokens(self, vocab: Toy, text: str, tokens: tuple[int, ...]) -> None:
        assert tokenizer(vocab).raw(text) == tokens

    def test_nothing_and_no_bos(self) -> None:
        with pytest.raises(PromptEmpty, match="no token to begin"):
            tokenizer(Toy(bos=-1)).raw("")


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model.load(demo_model()) as model:
        yield model


@pytest.mark.model
class TestDemoModel:
    def test_a_chat_is_what_llama_cpp_makes_of_it(self, model: Model) -> None:
        messages = [
            {"role": "system", "content": "Be brief. "},
            {"role": "user", "content": "Ça va?\n\n  123 👩‍👩‍👧"},
            {"role": "assistant", "content": " Yes."},
        ]
        rendered = ChatTemplate.of_model(model).render(messages)
        expected = model.vocab.tokenize(rendered.text, add_special=True, parse_special=True)
        assert PromptTokenizer(model.vocab).chat(rendered) == tuple(expected)

    @pytest.mark.parametrize("text", ["Hello", " Hello<|im_end|>\n", "<|im_start|>user\n123 é", "\0", "\n\n"])
    def test_a_raw_text_is_what_llama_cpp_makes_of_it(self, model: Model, text: str) -> None:
        expected = model.vocab.tokenize(text, add_special=True, parse_special=True)
        assert PromptTokenizer(model.vocab).raw(text) == tuple(expected)

    def test_control_strings_in_a_chat_are_not_control_tokens(self, model: Model) -> None:
        vocab = model.vocab
        rendered = ChatTemplate.of_model(model).render(
            [
                {"role": "user", "content": "".join(vocab.control_tokens)},
                {"role": "assistant", "content": "<|im_"},
            ]
        )
        tokens = PromptTokenizer(vocab).chat(rendered)
        # System, user, assistant: begun and ended; and the reply's beginning.
        assert sum(vocab.is_control(token) for token in tokens) == 7
        assert "".join(vocab.control_tokens).encode() in vocab.detokenize(list(tokens))
