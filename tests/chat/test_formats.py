"""Prompt formats by name: each against what its publisher says, with BOS once, and safe from what clients type."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.fakes import FakeModel, FakeVocab

from onceread.chat.builtin import find_template
from onceread.chat.errors import TemplateError
from onceread.chat.formats import BY_NAME, FORMATS
from onceread.chat.guard import Guard
from onceread.chat.prompt import PromptTokenizer
from onceread.chat.rendered import Control
from onceread.chat.template import ChatTemplate

NAMES = [one.name for one in FORMATS]
_MARKS = (
    "<s> </s> <unk> [INST] [/INST] <<SYS>> <</SYS>> <|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> "
    "<|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> <|system|> <|user|> <|assistant|> <|end|> <|endoftext|>"
)
MARKS = _MARKS.split()
EOG = {"</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"}

SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [
    {"role": "user", "content": "Hello, how are you?"},
    {"role": "assistant", "content": "Fine, and you?"},
    {"role": "user", "content": "I'm doing great!"},
]


class Vocab(FakeVocab):
    """A byte is a token, and every format's marks are control tokens."""

    control_tokens = {mark: 256 + i for i, mark in enumerate(MARKS)}  # noqa: RUF012
    marks = control_tokens
    size = 256 + len(MARKS)

    def __init__(self, bos: str = "<s>", eos: str = "</s>", *, add_bos: bool = True) -> None:
        self.bos, self.eos = self.control_tokens[bos], self.control_tokens[eos]
        self.add_bos = add_bos

    def text(self, token: int) -> str:
        return MARKS[token - 256]

    def is_eog(self, token: int) -> bool:
        return self.text(token) in EOG


class Wordless(Vocab):
    """No marks at all but BOS and EOS: an old model, of plain text."""

    control_tokens = {"<s>": 256, "</s>": 257}  # noqa: RUF012


@cache
def template(name: str, vocab: Vocab | None = None) -> ChatTemplate:
    model: Any = FakeModel(vocab or Vocab())
    return ChatTemplate.of_model(model, name)


def text(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return template(name).render(messages, **options).text


# Each as the publisher writes it out, filled with the conversation above.
PUBLISHED = {
    # https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello, how are you?<|im_end|>\n"
        "<|im_start|>assistant\nFine, and you?<|im_end|>\n<|im_start|>user\nI'm doing great!<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-2/, and for the space before EOS
    # https://github.com/meta-llama/llama/blob/main/llama/generation.py
    "llama2": (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello, how are you? [/INST] Fine, and you? </s>"
        "<s>[INST] I'm doing great! [/INST]"
    ),
    # https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello, how are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nFine, and you?<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nI'm doing great!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    # https://github.com/tatsu-lab/stanford_alpaca: one instruction; EOS behind a reply as in its train.py
    "alpaca": (
        "Be brief.\n\n### Instruction:\nHello, how are you?\n\n### Response:Fine, and you?</s>\n\n"
        "### Instruction:\nI'm doing great!\n\n### Response:"
    ),
    # https://github.com/lm-sys/FastChat/blob/main/docs/vicuna_weights_version.md, and for the spaces
    # https://github.com/lm-sys/FastChat/blob/main/fastchat/conversation.py
    "vicuna": "Be brief. USER: Hello, how are you? ASSISTANT: Fine, and you?</s>USER: I'm doing great! ASSISTANT:",
    # https://docs.mistral.ai/cookbook/concept-deep-dive-tokenization-templates
    "mistral-v1": (
        "<s> [INST] Be brief.\n\nHello, how are you? [/INST] Fine, and you?</s> [INST] I'm doing great! [/INST]"
    ),
    "mistral-v3": (
        "<s>[INST] Hello, how are you?[/INST] Fine, and you?</s>[INST] Be brief.\n\nI'm doing great![/INST]"
    ),
    # https://ai.google.dev/gemma/docs/formatting
    "gemma": (
        "<s><start_of_turn>user\nBe brief.\n\nHello, how are you?<end_of_turn>\n"
        "<start_of_turn>model\nFine, and you?<end_of_turn>\n"
        "<start_of_turn>user\nI'm doing great!<end_of_turn>\n<start_of_turn>model\n"
    ),
    # https://huggingface.co/microsoft/Phi-3-mini-4k-instruct
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHello, how are you?<|end|>\n<|assistant|>\nFine, and you?<|end|>\n"
        "<|user|>\nI'm doing great!<|end|>\n<|assistant|>\n"
    ),
    # https://huggingface.co/HuggingFaceH4/zephyr-7b-beta
    "zephyr": (
        "<|system|>\nBe brief.</s>\n<|user|>\nHello, how are you?</s>\n<|assistant|>\nFine, and you?</s>\n"
        "<|user|>\nI'm doing great!</s>\n<|assistant|>\n"
    ),
    # Our own.
    "plain": (
        "Be brief.\n\nUser: Hello, how are you?\nAssistant: Fine, and you?\nUser: I'm doing great!\nAssistant:"
    ),
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_conversation_as_published(name: str, published: str) -> None:
    assert text(name, [SYSTEM, *CHAT]) == published


def test_every_format_is_held_against_what_is_published() -> None:
    assert {*PUBLISHED, "phi2"} == set(NAMES)


def test_phi2_has_no_system_message() -> None:
    # https://huggingface.co/microsoft/phi-2
    assert text("phi2", CHAT) == (
        "Instruct: Hello, how are you?\nOutput: Fine, and you?\nInstruct: I'm doing great!\nOutput:"
    )
    with pytest.raises(TemplateError, match="phi2 knows no system messages: put it into a user's message"):
        text("phi2", [SYSTEM, *CHAT])


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        (
            "alpaca",
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nHello",
        ),
        (
            "vicuna",
            "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
            "detailed, and polite answers to the user's questions. USER: Hello",
        ),
        ("llama2", "<s>[INST] Hello"),
        ("mistral-v1", "<s> [INST] Hello"),
        ("gemma", "<s><start_of_turn>user\nHello"),
    ],
)
def test_without_a_system_message(name: str, begins: str) -> None:
    assert text(name, CHAT[:1]).startswith(begins)


def test_examples_in_the_publishers_own_words() -> None:
    pirate = [
        {"role": "system", "content": "Only reply like a pirate."},
        {"role": "user", "content": "What is the answer to life the universe and everything?"},
    ]
    assert text("gemma", pirate) == (
        "<s><start_of_turn>user\nOnly reply like a pirate.\n\n"
        "What is the answer to life the universe and everything?<end_of_turn>\n<start_of_turn>model\n"
    )
    llama = [
        {"role": "system", "content": "You are a pirate chatbot who always responds with Arr!"},
        {"role": "user", "content": "There's a llama on my lawn, how can I get rid of him?"},
    ]
    assert text("zephyr", llama) == (
        "<|system|>\nYou are a pirate chatbot who always responds with Arr!</s>\n"
        "<|user|>\nThere's a llama on my lawn, how can I get rid of him?</s>\n<|assistant|>\n"
    )


@pytest.mark.parametrize(
    "alias", ["llama-2", "llama-3", "mistral", "mistral-instruct", "phi-3", "phi", "phi-2"]
)
def test_other_names_of_the_same(alias: str) -> None:
    assert find_template(alias) == BY_NAME[alias].source


@pytest.mark.parametrize("name", [name for name in NAMES if name != "chatml"])
def test_a_role_that_the_format_lacks_is_refused(name: str) -> None:
    with pytest.raises(TemplateError, match=f"the format {name} "):
        text(name, [*CHAT, {"role": "tool", "content": "4"}])


@pytest.mark.parametrize("name", ["alpaca", "gemma", "llama2", "mistral-v1", "mistral-v3", "vicuna"])
def test_a_later_system_message_is_refused_where_the_format_has_one_place_for_it(name: str) -> None:
    with pytest.raises(TemplateError, match="only as the first message"):
        text(name, [*CHAT, SYSTEM])


@pytest.mark.parametrize("name", ["llama2", "mistral-v1", "mistral-v3"])
@pytest.mark.parametrize("messages", [CHAT[1:], CHAT[:1] * 2], ids=["assistant first", "user twice"])
def test_turns_must_alternate_where_they_share_their_marks(name: str, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError, match="in turn, a user message first"):
        text(name, messages)


def test_gemma_wants_a_user_behind_the_system() -> None:
    with pytest.raises(TemplateError, match="a user's message must follow"):
        text("gemma", [SYSTEM, CHAT[1]])


@pytest.mark.parametrize("name", NAMES)
def test_the_last_message_can_be_continued(name: str) -> None:
    assert text(name, CHAT[:2], add_generation_prompt=False, continue_final_message=True).endswith(
        "Fine, and you?"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("add_bos", [True, False], ids=["wants BOS", "wants none"])
def test_bos_stands_once_where_the_model_wants_it(name: str, add_bos: bool) -> None:
    vocab: Any = Vocab(add_bos=add_bos)
    tokens = PromptTokenizer(vocab).chat(template(name, vocab).render(CHAT))
    starts = [i for i, token in enumerate(tokens) if token == vocab.bos]
    if name == "llama2":  # published so: each turn begins with it
        assert starts[0] == 0
        assert len(starts) == 2
        assert 1 not in starts
    elif name in ("llama3", "gemma", "mistral-v1", "mistral-v3"):  # it is part of the format
        assert starts == [0]
    else:
        assert starts == ([0] if add_bos else [])


class TestStops:
    @pytest.mark.parametrize(
        ("name", "stops"),
        [
            ("alpaca", ("\n\n### Instruction:", "### Instruction:")),
            ("vicuna", ("USER:",)),
            ("phi2", ("\nInstruct:",)),
            ("plain", ("\nUser:",)),
        ],
    )
    def test_words_end_a_reply_where_no_token_does(self, name: str, stops: tuple[str, ...]) -> None:
        assert template(name).stops == stops

    @pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "phi3"])
    def test_a_mark_ends_it_as_text_only_where_the_model_has_no_token_for_it(self, name: str) -> None:
        assert template(name).stops == ()
        assert template(name, Wordless()).stops == BY_NAME[name].ends != ()

    @pytest.mark.parametrize("name", ["llama2", "mistral-v1", "mistral-v3", "zephyr"])
    def test_eos_needs_no_help(self, name: str) -> None:
        assert template(name, Wordless()).stops == ()

    def test_a_template_of_somebody_elses_has_none(self) -> None:
        assert template("{{ messages[0].content }}").stops == ()

    def test_a_models_own_template_that_is_one_of_ours_has_them(self) -> None:
        model: Any = FakeModel(Vocab(), find_template("plain"))
        assert ChatTemplate.of_model(model).stops == ("\nUser:",)


_CUT = [piece for mark in MARKS for i in range(1, len(mark)) for piece in (mark[:i], mark[i:])]
typed = st.lists(
    st.one_of(st.sampled_from(MARKS), st.sampled_from(_CUT), st.sampled_from(["x", "\n", " "])), max_size=5
).map("".join)


def controls(name: str, said: list[str]) -> list[str]:
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [{"role": role, "content": each or "q"} for role, each in zip(roles, said, strict=True)]
    if name == "phi2":
        messages = messages[1:]
    return [part.text for part in template(name).render(messages).segments if isinstance(part, Control)]


@pytest.mark.parametrize("name", NAMES)
@given(said=st.lists(typed, min_size=6, max_size=6))
@settings(max_examples=30, deadline=None)
def test_nothing_that_is_said_turns_into_a_control_token(name: str, said: list[str]) -> None:
    assert controls(name, said) == controls(name, ["q"] * 6)


@pytest.mark.parametrize("name", NAMES)
def test_no_whole_mark_and_no_two_halves_do(name: str) -> None:
    for mark in MARKS:
        for cut in range(1, len(mark)):
            said = [f"{mark[cut:]}a{mark}b{mark[:cut]}"] * 6
            assert controls(name, said) == controls(name, ["q"] * 6)


@pytest.mark.parametrize("name", NAMES)
def test_unguarded_the_same_words_would(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(Guard, "mark", lambda self, value: value)
    assert controls(name, ["<|im_end|></s>[/INST]"] * 6) != controls(name, ["q"] * 6)


@pytest.mark.parametrize("name", NAMES)
def test_each_names_where_it_is_published(name: str) -> None:
    comment = re.match(r"{#-.*?-#}", BY_NAME[name].source, re.DOTALL)
    assert comment is not None
    assert "https://" in comment[0] or name == "plain"
