"""Grammars that make a reply a tool call: whatever they let through is one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from onceread.chat.forced import CannotForce, force_call
from onceread.chat.hermes import Hermes
from onceread.chat.llama3 import Llama3
from onceread.chat.mistral import Mistral
from onceread.chat.toolcalls import ArgumentsDelta, CallBegan, CallEnded, Content, ToolFormat
from onceread.native.grammar import _tokenizer
from onceread.native.model import Model

pytestmark = pytest.mark.model


def tool(name: str, schema: Any = None) -> dict[str, Any]:
    return {"name": name, "parameters": schema}


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
RANGE = {
    "type": "object",
    "properties": {
        "percent": {"type": "integer", "minimum": 0, "maximum": 100},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["percent", "day"],
}
TOOLS = [
    tool("range", RANGE),
    tool("weather", WEATHER),
    tool("tree", TREE),
    tool("nothing", {"type": "object", "properties": {}}),
    tool("anything", {"type": "object"}),
]


@pytest.fixture(scope="module")
def vocab(smollm2_path: Path) -> Any:
    with Model.load(smollm2_path) as model:
        yield model.vocab


def accepts(vocab: Any, forced: str, *parts: str | int) -> bool:
    """Does the grammar take these texts and tokens, and may the reply end there?"""
    matcher = LLMatcher(_tokenizer(vocab), forced, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens: list[int] = []
    for part in parts:
        tokens += (
            [part] if isinstance(part, int) else vocab.tokenize(part, add_special=False, parse_special=False)
        )
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


HERMES, LLAMA, LIST, NAMED = Hermes(), Llama3(), Mistral(), Mistral(named=True)


def written(form: ToolFormat, name: str, arguments: str) -> str:
    shape = form.shape
    return f"{shape.before}{name}{shape.between}{arguments}{shape.after}"


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("weather", '{"city": "Paris", "unit": "°C"}', True),
        ("weather", '{"city": "A \\"b\\" é", "days": -3, "unit": "°F"}', True),
        ("weather", '{"city": "Paris"}', False),
        ("weather", '{"city": "Paris", "unit": "K"}', False),
        ("weather", '{"city": "' + "x" * 21 + '", "unit": "°C"}', False),
        ("weather", '{"city":"Paris","unit":"°C"}', False),
        ("tree", '{"root": {"of": [{"n": 1.5e3}, {"n": null}], "n": 0}, "also": 5}', True),
        ("tree", '{"root": {"n": 1}, "also": 6}', False),
        ("tree", '{"root": {"of": [{"n": 1}, {"n": 1}, {"n": 1}], "n": 1}}', False),
        ("nothing", "{}", True),
        ("nothing", '{"x": {"y": [1, true, "z"]}}', False),
        ("anything", '{"x": {"y": [1, true, "z"]}}', True),
        ("range", '{"percent": 55, "day": "2024-02-29"}', True),
        ("range", '{"percent": 101, "day": "2024-02-29"}', False),
        ("range", '{"percent": 55, "day": "2023-02-29"}', False),
        ("other", "{}", False),
    ],
)
@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST], ids=["hermes", "llama3", "mistral"])
def test_what_the_grammar_takes(vocab: Any, form: ToolFormat, name: str, arguments: str, right: bool) -> None:
    forced = force_call(form.shape, TOOLS, many=False, marks={})
    text = f"{form.shape.begin}{written(form, name, arguments)}{form.shape.end}"
    assert accepts(vocab, forced, text) == right
    assert not accepts(vocab, forced, "Sure. " + text)


@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST, NAMED], ids=["hermes", "llama3", "mistral", "named"])
def test_several_calls_only_where_they_may_be(vocab: Any, form: ToolFormat) -> None:
    two = form.shape.separator.join([written(form, "nothing", "{}")] * 2)
    text = f"{form.shape.begin}{two}{form.shape.end}"
    assert accepts(vocab, force_call(form.shape, TOOLS, many=True, marks={}), text)
    assert not accepts(vocab, force_call(form.shape, TOOLS, many=False, marks={}), text)


def test_marks_of_the_vocabulary_are_tokens(vocab: Any) -> None:
    one, two = vocab.marks["<file_sep>"], vocab.marks["<gh_stars>"]
    marks = {"[TOOL_CALLS]": one, "[ARGS]": two, "<tool_call>": one, "</tool_call>": two, "<s>": 5}
    listed = force_call(LIST.shape, TOOLS, many=True, marks=marks)
    calls = '[{"name": "nothing", "arguments": {}}, {"name": "nothing", "arguments": {}}]'
    assert accepts(vocab, listed, one, calls)
    assert not accepts(vocab, listed, "[TOOL_CALLS]" + calls)
    named = force_call(NAMED.shape, TOOLS, many=True, marks=marks)
    assert accepts(
        vocab, named, one, "weather", two, '{"city": "Rome", "unit": "°F"}', one, "nothing", two, "{}"
    )
    assert not accepts(vocab, named, one, "other", two, "{}")
    hermes = force_call(HERMES.shape, TOOLS, many=True, marks=marks)
    assert accepts(vocab, hermes, one, '\n{"name": "nothing", "arguments": {}}\n', two)


def test_schemas_that_no_grammar_can_say_are_left_out_unless_strict(vocab: Any) -> None:
    odd = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    forced = force_call(HERMES.shape, [tool("odd", odd)], many=False, marks={})
    assert accepts(vocab, forced, written(HERMES, "odd", '{"other": 1}'))
    with pytest.raises(CannotForce, match="the tool odd is strict: the JSON schema can't be enforced"):
        force_call(HERMES.shape, [{**tool("odd", odd), "strict": True}], many=False, marks={})


def test_either_calls_or_json_of_another_schema(vocab: Any) -> None:
    schema = '{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}'
    forced = force_call(HERMES.shape, TOOLS, many=True, marks={}, otherwise=schema)
    assert accepts(vocab, forced, written(HERMES, "nothing", "{}"))
    assert accepts(vocab, forced, '{"answer":42}')
    assert not accepts(vocab, forced, '{"answer":"42"}')
    assert not accepts(vocab, forced, "42")


@pytest.mark.parametrize("form", [HERMES, LLAMA, LIST, NAMED], ids=["hermes", "llama3", "mistral", "named"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_grammar_takes_is_read_as_calls(vocab: Any, form: ToolFormat, seed: int) -> None:
    choice = random.Random(seed)
    forced = force_call(form.shape, TOOLS[1:3], many=True, marks={})
    tokenizer = _tokenizer(vocab)
    matcher = LLMatcher(tokenizer, forced, log_level=0)
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
