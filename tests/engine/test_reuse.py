"""What people do with a chat, and what it may cost: only the tokens never seen before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.conftest import GREEDY, Chat
from tests.engine.twin import least_to_read

from onceread.engine.engine import Engine
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

pytestmark = pytest.mark.model
MakeEngine = Callable[..., Engine]


def new_tokens(model: Model, text: str) -> int:
    """Tokens of a turn: the end of the last reply, the user's message, the head of the next reply."""
    turn = f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return len(model.vocab.tokenize(turn, add_special=False, parse_special=True))


def test_ten_turns_evaluate_only_what_is_new(model: Model, make_engine: MakeEngine) -> None:
    chat = Chat(make_engine())
    chat.say("Hello, keeper.")
    for turn in range(9):
        text = f"Tell me thing number {turn} about your tower."
        usage = chat.say(text).usage
        # The last sampled token was never evaluated, unless the reply ended by itself.
        assert new_tokens(model, text) <= usage.evaluated_tokens <= new_tokens(model, text) + 1


def test_twelve_conversations_in_rotation(model: Model, make_engine: MakeEngine) -> None:
    engine = make_engine(ctx_size=8192)
    chats = [Chat(engine, f"You are character number {i}. You like the number {i}.") for i in range(12)]
    for chat in chats:
        chat.say("Hello, who are you?", 6)
    for turn in range(2):
        for chat in chats:
            text = f"And what is new in year {turn}?"
            assert chat.say(text, 6).usage.evaluated_tokens <= new_tokens(model, text) + 1


def test_regenerate_and_return_to_an_earlier_branch_evaluate_one_token(make_engine: MakeEngine) -> None:
    chat = Chat(make_engine())
    chat.say("Hello, keeper.")
    before = chat.history
    first = before + "<|im_start|>user\nWhat do you see?<|im_end|>\n<|im_start|>assistant\n"
    chat.ask(first)
    assert chat.ask(first).usage.evaluated_tokens == 1
    for edit in ("What do you hear?", "What do you eat?", "What do you dream?"):
        chat.ask(before + f"<|im_start|>user\n{edit}<|im_end|>\n<|im_start|>assistant\n")
    assert chat.ask(first).usage.evaluated_tokens == 1


def test_four_cold_clients_read_a_common_prefix_once(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine()
    prompts = [(*tokens[:1000], 500 + i, 600 + i) for i in range(4)]
    handles = [engine.submit(Request(p, GREEDY, 4)) for p in prompts]
    evaluated = [gather(h).usage.evaluated_tokens for h in handles]
    assert sorted(evaluated) == [2, 2, 2, 1002]
    assert engine.stats().prompt_evaluated_total == 1008


@pytest.mark.parametrize("n", [3, 6], ids=["fewer than may run", "more than may run"])
def test_several_replies_read_the_prompt_once(make_engine: MakeEngine, tokens: list[int], n: int) -> None:
    engine = make_engine()
    done = gather(
        engine.submit(Request(tuple(tokens[:100]), SamplingParams(seed=1, temperature=1.5), 8, n=n))
    )
    assert len(set(done.texts)) > 1
    assert done.usage.prompt_tokens == 100
    assert done.usage.evaluated_tokens == engine.stats().prompt_evaluated_total == 100
    # Those that found no slot come when one is free: the first evaluates the last token again, for its logits.
    assert engine.stats().prompt_reevaluated_total == (n > 4)
    assert engine.stats().running == 0


def test_each_of_several_replies_is_the_one_its_own_seed_gives(
    make_engine: MakeEngine, tokens: list[int]
) -> None:
    """On two fresh engines, since what is sampled depends on the last bit of logits."""
    request = Request(tuple(tokens[:40]), SamplingParams(seed=7, temperature=1.2), 6, n=2)
    first, second = (gather(make_engine().submit(request)).texts for _ in range(2))
    assert first == second
    assert first[0] != first[1]


def test_a_reply_sent_back_as_text_costs_nothing(model: Model, make_engine: MakeEngine) -> None:
    """Sampled at a high temperature, so that its tokens are not those the tokenizer would make."""
    engine = make_engine()
    vocab = model.vocab
    prompt = vocab.tokenize("Strange words:", add_special=True, parse_special=True)
    resplit = 0
    for seed in range(12):
        wild = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        done = gather(engine.submit(Request(tuple(prompt), wild, 24)))
        back = vocab.tokenize(
            "Strange words:" + done.texts[0] + " So much.", add_special=True, parse_special=True
        )
        sampled = done.usage.completion_tokens
        resplit += len(back) != len(prompt) + sampled + len(
            vocab.tokenize(" So much.", add_special=False, parse_special=False)
        )
        if "\ufffd" in done.texts[0]:
            continue  # bytes that are no character can't come back
        usage = gather(engine.submit(Request(tuple(back), GREEDY, 1))).usage
        # The last token was sampled and never read: a piece of it may stand in one token with what came before.
        assert usage.evaluated_tokens <= least_to_read(model, [prompt + done.ids[0][:-1]], back)
        assert usage.evaluated_tokens < 10, done.texts[0]
    assert resplit >= 3, "the tokenizer split every reply as it was sampled: the test shows nothing"


def test_an_empty_reply_reads_the_prompt_only(make_engine: MakeEngine, tokens: list[int]) -> None:
    engine = make_engine()
    done = gather(engine.submit(Request(tuple(tokens[:50]), GREEDY, 0)))
    assert (done.texts, done.reasons, done.usage.completion_tokens) == ([""], ["length"], 0)
    assert gather(engine.submit(Request(tuple(tokens[:50]), GREEDY, 1))).usage.evaluated_tokens == 1
