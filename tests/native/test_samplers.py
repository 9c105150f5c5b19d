"""Each sampler does what its name says, on the real model's logits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.errors import GrammarInvalid, SamplerInvalid
from onceread.native.grammar import Grammar
from onceread.native.model import Model
from onceread.native.params import Constraint, SamplingParams
from onceread.native.samplers import Sampler

pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0)


def gbnf(text: str) -> Constraint:
    return Constraint("gbnf", text)


@pytest.fixture
def write(model: Model, make_context: Callable[..., Context], batch: Batch) -> Callable[..., list[int]]:
    context = make_context()
    prompt = model.vocab.tokenize(
        "One, two, three, one, two, three, one, two,", add_special=True, parse_special=True
    )

    def run(params: SamplingParams, n: int = 12, ignore_eos: bool = False) -> list[int]:
        context.drop(0)
        batch.clear()
        index = batch.add(prompt, 0, 0, logits_last=True)
        context.decode(batch)
        sampler = Sampler(model.vocab, params, n_ctx=512, ignore_eos=ignore_eos)
        if sampler.look_back:
            sampler.accept_prompt(prompt[-sampler.look_back :])
        out: list[int] = []
        try:
            for pos in range(len(prompt), len(prompt) + n):
                out.append(sampler.sample(context, index))
                if model.vocab.is_eog(out[-1]):
                    break
                batch.clear()
                index = batch.add_one(out[-1], pos, 0)
                context.decode(batch)
        finally:
            sampler.close()
        return out

    return run


def test_the_same_seed_writes_the_same_and_another_does_not(write: Callable[..., list[int]]) -> None:
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert write(SamplingParams(seed=1, **hot)) == write(SamplingParams(seed=1, **hot))
    assert write(SamplingParams(seed=1, **hot)) != write(SamplingParams(seed=2, **hot))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=1, seed=3),
        SamplingParams(top_p=1e-6, seed=3),
        SamplingParams(min_p=1.0, seed=3),
        SamplingParams(temperature=1e-4, seed=3),
    ],
    ids=["top-k 1", "top-p near 0", "min-p 1", "temperature near 0"],
)
def test_the_narrowest_setting_is_greedy(write: Callable[..., list[int]], params: SamplingParams) -> None:
    assert write(params) == write(GREEDY)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, repeat_penalty=2.0),
        SamplingParams(temperature=0, presence_penalty=2.0, repeat_last_n=-1),
        SamplingParams(temperature=0, frequency_penalty=2.0),
        SamplingParams(temperature=0, dry_multiplier=5.0, dry_allowed_length=1, dry_sequence_breakers=()),
    ],
    ids=["repeat", "presence", "frequency", "DRY"],
)
def test_penalties_see_the_prompt_and_break_the_repetition(
    write: Callable[..., list[int]], params: SamplingParams
) -> None:
    assert write(params)[:4] != write(GREEDY)[:4]


@pytest.mark.parametrize("params", [
    SamplingParams(mirostat=1, seed=4), SamplingParams(mirostat=2, seed=4), SamplingParams(typical_p=0.5, seed=4),
    SamplingParams(xtc_probability=1.0, xtc_threshold=0.05, seed=4),
], ids=["mirostat 1", "mirostat 2", "typical", "XTC"])  # fmt: skip
def test_the_others_write_and_repeat_by_seed(write: Callable[..., list[int]], params: SamplingParams) -> None:
    first = write(params)
    assert first
    assert first == write(params)


def test_samplers_run_in_the_order_that_is_given(write: Callable[..., list[int]]) -> None:
    hot = SamplingParams(temperature=50.0, top_k=0, top_p=0.01, min_p=0.0, seed=5)
    assert write(replace(hot, order=("top_p", "temperature"))) == write(
        GREEDY
    )  # one candidate is left to heat
    assert write(replace(hot, order=("temperature", "top_p"))) != write(GREEDY)


def test_samplers_that_are_not_named_are_off(write: Callable[..., list[int]]) -> None:
    narrow = SamplingParams(temperature=1e-4, top_k=1, top_p=1e-6, min_p=1.0, seed=5)
    assert write(narrow) == write(GREEDY)
    assert write(replace(narrow, order=())) != write(GREEDY)
    penalized = SamplingParams(temperature=0, repeat_penalty=2.0)
    assert write(replace(penalized, order=("dry",))) == write(GREEDY)


def test_a_sampler_that_there_is_not(model: Model) -> None:
    with pytest.raises(SamplerInvalid, match="no sampler of the name tail"):
        Sampler(model.vocab, SamplingParams(order=("tail",)), n_ctx=512)


def test_logit_bias_forbids_and_forces(write: Callable[..., list[int]], model: Model) -> None:
    greedy = write(GREEDY)
    assert write(SamplingParams(temperature=0, logit_bias=((greedy[0], -100.0),)))[0] != greedy[0]
    assert write(SamplingParams(temperature=0, logit_bias=((777, 100.0),)), n=3) == [777] * 3
    with pytest.raises(SamplerInvalid, match="outside the vocabulary"):
        write(SamplingParams(logit_bias=((model.vocab.size, 1.0),)))


@pytest.mark.parametrize("ignore_eos", [False, True], ids=["may end", "never ends"])
def test_the_likeliest_token_is_the_one_that_llamas_own_sampler_takes(
    model: Model, make_context: Callable[..., Context], batch: Batch, ignore_eos: bool
) -> None:
    """Greedy replies are not sampled by the chain; it is asked all the same, by biases that do and don't matter."""
    context = make_context()
    prompt = model.vocab.tokenize("One, two,", add_special=True, parse_special=True)
    batch.clear()
    index = batch.add(prompt, 0, 0, logits_last=True)
    context.decode(batch)
    logits = context.logits(index)
    best, second, third = (int(t) for t in np.argsort(logits)[::-1][:3])
    chosen = []
    for bias in (
        (),
        ((best, -50.0),),
        ((best, float("-inf")), (second, float("-inf"))),
        ((third, 50.0),),
        ((third, 0.001), (second, -3.0)),
        ((best, 1.0), (third, 50.0)),
        tuple((token, -50.0) for token in range(0, model.vocab.size, 2)),
    ):
        sampler = Sampler(model.vocab, replace(GREEDY, logit_bias=bias), n_ctx=512, ignore_eos=ignore_eos)
        with contextlib.closing(sampler):
            chosen.append(sampler.sample(context, index))
            assert chosen[-1] == sampler.sample_from(logits)
    assert chosen[:4] == [best, second, third, third]
    assert np.array_equal(context.logits(index), logits)


def test_ignore_eos_never_ends(write: Callable[..., list[int]], model: Model) -> None:
    force_end = SamplingParams(temperature=0, logit_bias=((model.vocab.eos, 100.0),))
    assert write(force_end, n=3) == [model.vocab.eos]
    assert len(write(force_end, n=3, ignore_eos=True)) == 3


def test_a_grammar_holds(write: Callable[..., list[int]], model: Model) -> None:
    for seed in range(3):
        out = write(SamplingParams(temperature=2.0, seed=seed, constraint=gbnf('root ::= "<" [0-9]{3} ">"')))
        text = model.vocab.detokenize(out).decode()
        assert text[0] == "<"
        assert text[-1] == ">"
        assert text[1:-1].isdigit()
        assert len(text) == 5


def test_a_reply_ends_where_its_grammar_does(write: Callable[..., list[int]], model: Model) -> None:
    out = write(SamplingParams(temperature=0, constraint=gbnf('root ::= "yes" | "no"')))
    assert model.vocab.detokenize(out) in (b"yes", b"no")
    assert out[-1] == model.vocab.eos


def test_a_control_string_in_a_grammar_is_text(write: Callable[..., list[int]], model: Model) -> None:
    out = write(SamplingParams(temperature=0, constraint=gbnf('root ::= "<|im_end|>"')))
    assert model.vocab.detokenize(out) == b"<|im_end|>"


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def test_json_comes_out_of_a_json_grammar(write: Callable[..., list[int]], model: Model) -> None:
    closing = tuple((t, 8.0) for t in (model.vocab.tokenize('}"', add_special=False, parse_special=False)))
    for seed in range(3):
        out = write(SamplingParams(seed=seed, constraint=gbnf(JSON), logit_bias=closing), n=120)
        if out[-1] == model.vocab.eos:
            json.loads(model.vocab.detokenize(out))


@pytest.mark.parametrize(
    "grammar",
    ["", "root ::= (", "x ::= [a]", "root ::= root", 'root ::= "a" missing', "\0", 'root ::= "a" | | ('],
)
def test_a_grammar_that_can_not_be_used_is_refused(model: Model, grammar: str) -> None:
    with pytest.raises(GrammarInvalid):
        Grammar(model.vocab, gbnf(grammar))


HOSTILE = {
    "nested parentheses": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "a chain of rules": "root ::= r0\n"
    + "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000))
    + 'r4000 ::= "a"',
    "nothing, repeated in three ways": 'root ::= (("a"{0,30}){0,30}){0,30}',
    "an option, repeated": 'root ::= ("a"?){0,200}',
    "forty stars": "root ::= " + '"a"* ' * 40,
    "two ways to say it": 'root ::= ("a" | "aa"){0,5000} "b"',
    "left recursion": 'root ::= root "a" | "b"',
    "a huge repetition": 'root ::= "a"{99999999999999999999}',
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_grammar_is_refused_or_quick(write: Callable[..., list[int]], grammar: str) -> None:
    """llama.cpp's own sampler takes longer than anyone would wait on some of these, and crashes on others."""
    with contextlib.suppress(GrammarInvalid):
        write(SamplingParams(temperature=0, constraint=gbnf(grammar)), n=6)


def test_sampling_leaves_the_logits_alone(
    model: Model, make_context: Callable[..., Context], batch: Batch
) -> None:
    context = make_context()
    batch.clear()
    index = batch.add([1, 2, 3], 0, 0, logits_last=True)
    context.decode(batch)
    before = context.logits(index)
    sampler = Sampler(model.vocab, SamplingParams(seed=1), n_ctx=512)
    sampler.sample(context, index)
    sampler.close()
    assert np.array_equal(before, context.logits(index))
