"""Grammars that make a reply a tool call: whatever they let through is one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from onceread.chat.forced import CannotForce, Forced, force_call
from onceread.chat.hermes import Hermes
from onceread.chat.llama3 import Llama3
from onceread.chat.mistral import Mistral
from onceread.chat.toolcalls import ArgumentsDelta, CallBegan, CallEnded, Content, ToolFormat
from onceread.native.grammar import _tokenizer
from onceread.native.model import Model

pytestmark = pytest.mark.model


def tool(name: str, schema: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer"},
        "unit": {"enum": ["°C", "°F"]},
    },
    "required": ["city", "unit"],
}
NODE = {
    "type": "object",
    "properties": {
        "of": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        "n": {"type": ["number", "null"]},
    },
    "required": ["n"],
}
TREE = {
    "$defs": {"node": NODE},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "also": {"anyOf": [{"const": 5}, {"type": "boolean"}]}},
    "required": ["root"],
}
TOOLS = [tool("weather", WEATHER), tool("tree", TREE), tool("nothing", {"type": "object", "properties": {}})]


@pytest.fixture(scope="module")
def vocab(smollm2_path: Path) -> Any:
    with Model.load(smollm2_path) as model:
        yield model.vocab


def accepts(vocab: Any, forced: Forced, text: str) -> bool:
    """Does the grammar take ``text``, and may the reply end there?"""
    matcher = LLMatcher(_tokenizer(vocab), gbnf_to_lark(forced.grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocab.tokenize(text, add_special=False, parse_special=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


HERMES, LLAMA, LIST, NAMED = Hermes(), Llama3(), Mistral(), Mistral(named=True)


def written(form: ToolFormat, name: str, arguments: str) -> str:
    shape = form.shape
    return f"{shape.before}{name}{shape.between}{arguments}{shape.after}"


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("weather", '{"city": "Paris", "unit": "°C"}', True),
        ("weather", '{"city": "A \\"b\\" \\u00e9", "days": -3, "unit": "°F"}', True),
        ("weather", '{"city": "Paris"}', False),
        ("weather", '{"city": "Paris", "unit": "K"}', False),
        ("weather", '{"city": "' + "x" * 21 + '", "unit": "°C"}', False),
        ("weather", '{"city":"Paris","unit":"°C"}', False),
        ("tree", '{"root": {"of": [{"n": 1.5e3}, {"n": null}], "n": 0}, "also": 5}', True),
        ("tree", '{"root": {"n": 1}, "also": 6}', False),
        ("tree", '{"root": {"of": [{"n": 1}, {"n": 1}, {"n": 1}], "n": 1}}', False),
        ("nothing", "{}", True),
        ("nothing", '{"x": {"y": [1, true, "z"]}}', True),
        ("other", "{}", False),
    ],
)
@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST], ids=["hermes", "llama3", "mistral"])
def test_what_the_grammar_takes(vocab: Any, form: ToolFormat, name: str, arguments: str, right: bool) -> None:
    forced = force_call(form.shape, TOOLS, many=False, control=())
    assert forced.prompt == ""
    text = f"{form.shape.begin}{written(form, name, arguments)}{form.shape.end}"
    assert accepts(vocab, forced, text) == right
    assert not accepts(vocab, forced, "Sure. " + text)


@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST, NAMED], ids=["hermes", "llama3", "mistral", "named"])
def test_several_calls_only_where_they_may_be(vocab: Any, form: ToolFormat) -> None:
    two = form.shape.separator.join([written(form, "nothing", "{}")] * 2)
    text = f"{form.shape.begin}{two}{form.shape.end}"
    assert accepts(vocab, force_call(form.shape, TOOLS, many=True, control=()), text)
    assert not accepts(vocab, force_call(form.shape, TOOLS, many=False, control=()), text)


def test_marks_that_are_control_tokens(vocab: Any) -> None:
    control = {"[TOOL_CALLS]": 1, "[ARGS]": 2, "<tool_call>": 3, "</tool_call>": 4, "<s>": 5}
    listed = force_call(LIST.shape, TOOLS, many=True, control=control)
    assert listed.prompt == "[TOOL_CALLS]"
    assert accepts(
        vocab, listed, '[{"name": "nothing", "arguments": {}}, {"name": "nothing", "arguments": {}}]'
    )
    named = force_call(NAMED.shape, TOOLS[:1], many=True, control=control)
    assert named.prompt == "[TOOL_CALLS]weather[ARGS]"
    assert accepts(vocab, named, '{"city": "Rome", "unit": "°F"}')
    hermes = force_call(HERMES.shape, TOOLS, many=True, control=control)
    assert hermes.prompt == "<tool_call>"
    assert accepts(vocab, hermes, '\n{"name": "nothing", "arguments": {}}\n')
    with pytest.raises(CannotForce, match="name the one"):
        force_call(NAMED.shape, TOOLS, many=False, control=control)


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_thinking_that_the_prompt_began_may_end_first(vocab: Any, tags: tuple[str, str]) -> None:
    forced = force_call(HERMES.shape, TOOLS, many=False, control=(), thinks=tags)
    call = written(HERMES, "nothing", "{}")
    assert accepts(vocab, forced, f"So [a] </b> <</th\n{tags[1]}\n\n{call}")
    assert not accepts(vocab, forced, call)


def test_schemas_too_large_for_a_grammar_are_left_out(vocab: Any) -> None:
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}
    forced = force_call(HERMES.shape, [tool("wide", wide)], many=False, control=())
    assert accepts(vocab, forced, written(HERMES, "wide", '{"other": 1}'))


@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST, NAMED], ids=["hermes", "llama3", "mistral", "named"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_grammar_takes_is_read_as_calls(vocab: Any, form: ToolFormat, seed: int) -> None:
    choice = random.Random(seed)
    forced = force_call(form.shape, TOOLS[:2], many=True, control=())
    tokenizer = _tokenizer(vocab)
    matcher = LLMatcher(tokenizer, gbnf_to_lark(forced.grammar), log_level=0)
    text, tokens = b"", 0
    parser = form.parser(["weather", "tree"], many=True)
    while not matcher.is_stopped() and tokens < 400:
        mask = matcher.compute_bitmask()
        allowed = [t for t in range(vocab.size) if mask[t // 8] >> (t % 8) & 1]
        if any(vocab.is_eog(t) for t in allowed):
            break
        # The shortest ways out: random text would go on for ever.
        allowed.sort(key=lambda t: len(vocab.pieces[t]))
        token = choice.choice(allowed[:40])
        assert matcher.consume_token(token)
        text += vocab.pieces[token]
        tokens += 1
    events = [*parser.feed(text.decode(errors="replace")), *parser.finish(cut=tokens >= 400)]
    assert not [event for event in events if isinstance(event, Content)]
    assert isinstance(events[0], CallBegan) or tokens >= 400
    for index in [event.index for event in events if isinstance(event, CallEnded)]:
        arguments = "".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == index)
        assert isinstance(json.loads(arguments), dict)
