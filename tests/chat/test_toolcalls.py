"""Tool calls in a model's text: what is one, what is not, and that it does not matter how the text comes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceread.chat.hermes import Hermes
from onceread.chat.llama3 import Llama3
from onceread.chat.mistral import Mistral
from onceread.chat.reasoning import ReasoningText
from onceread.chat.toolcalls import (
    ArgumentsDelta,
    CallBegan,
    CallBroken,
    CallEnded,
    Content,
    PlainText,
    Reasoning,
    ReplyText,
    ToolFormat,
    Wording,
)

HERMES, LLAMA, LIST, NAMED = Hermes(), Llama3(), Mistral(), Mistral(named=True)
FORMATS: list[ToolFormat] = [HERMES, LLAMA, LIST, NAMED]
NAMES = [f"{form.name}{' named' if getattr(form, 'named', False) else ''}" for form in FORMATS]


@dataclass
class Said:
    """A reply taken apart, with the deltas put together."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)  # name, arguments
    ended: dict[int, Wording] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)

    @property
    def whole(self) -> list[tuple[str, Any]]:
        """The complete calls, their arguments as JSON. Fails if they are none."""
        return [(self.calls[i][0], json.loads(self.calls[i][1])) for i in self.ended]


def said(parser: ReplyText, pieces: list[str], *, cut: bool = False) -> Said:
    found = Said()
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in [*events, *parser.finish(cut=cut)]:
        match event:
            case Content(text):
                assert text
                found.content += text
            case Reasoning(text):
                assert text
                found.reasoning += text
            case CallBegan(index, name):
                assert index == len(found.calls), "calls begin in order"
                found.calls[index] = [name, ""]
            case ArgumentsDelta(index, text):
                assert text
                assert index not in found.ended
                found.calls[index][1] += text
            case CallEnded(index, wording):
                found.ended[index] = wording
            case CallBroken(index):
                found.broken.add(index)
    assert not found.broken & found.ended.keys()
    assert not set(found.calls) - found.broken - found.ended.keys() or cut, "no call stays open"
    return found


def read(form: ToolFormat, text: str, *, many: bool = True, cut: bool = False) -> Said:
    return said(form.parser(["f", "g"], many=many), [text], cut=cut)


F1 = ("f", {"x": 1})
G2 = ("g", {"y": [2, {"z": "}]</tool_call>"}]})
G2_JSON = '{"y": [2, {"z": "}]</tool_call>"}]}'

F = '{"name": "f", "arguments": {"x": 1}}'
G = f'{{"name": "g", "arguments": {G2_JSON}}}'
TURNED = '{"arguments":{"x":1},"name":"f"}'
IN_STRING = '{"name": "f", "arguments": "{\\"x\\": 1}"}'
BREAK = '{"name": "f", "arguments": {"x": "a\nb"}}'
LLAMA_F, LLAMA_G = F.replace("arguments", "parameters"), G.replace("arguments", "parameters")

CALLS: list[tuple[ToolFormat, str, list[Any], str, str]] = [
    # (format, text, calls, content, what it is)
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", [F1], "", "one"),
    (HERMES, f"So:\n<tool_call>{TURNED}</tool_call>\n", [F1], "So:", "turned around"),
    (HERMES, f"<tool_call>{F}", [F1], "", "not closed"),
    (HERMES, f"<tool_call>{F}}}</tool_call>", [F1], "}</tool_call>", "a } more"),
    (HERMES, f"<tool_call>{IN_STRING}</tool_call>", [F1], "", "JSON in a string"),
    (HERMES, '<tool_call>{"name": "h"}</tool_call>', [("h", {})], "", "no arguments, unknown name"),
    (HERMES, f"<tool_call>{BREAK}</tool_call>", [("f", {"x": "a\nb"})], "", "a raw line break"),
    (
        HERMES,
        f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call> And?",
        [F1, G2],
        " And?",
        "two, and text behind",
    ),
    (LLAMA, LLAMA_F, [F1], "", "bare"),
    (LLAMA, f'<|python_tag|>{{"type": "function", {LLAMA_F[1:]}', [F1], "", "tagged"),
    (LLAMA, f"{LLAMA_F}; {LLAMA_G}", [F1, G2], "", "two"),
    (LLAMA, f"Well <|python_tag|>{LLAMA_F}", [F1], "Well", "text before the tag"),
    (LIST, f"[TOOL_CALLS][{F}]", [F1], "", "one"),
    (LIST, f"[TOOL_CALLS] [{F}, {G}]", [F1, G2], "", "two"),
    (LIST, f"[TOOL_CALLS] {F}", [F1], "", "no list"),
    (NAMED, '[TOOL_CALLS]f[ARGS]{"x": 1}', [F1], "", "one"),
    (
        NAMED,
        f'Oh.[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{{"x": 1}}[TOOL_CALLS]g[ARGS]{G2_JSON}',
        [F1, G2],
        "Oh.",
        "two",
    ),
]


@pytest.mark.parametrize(
    ("form", "text", "calls", "content"),
    [case[:4] for case in CALLS],
    ids=[f"{case[0].name}: {case[4]}" for case in CALLS],
)
def test_calls(form: ToolFormat, text: str, calls: list[Any], content: str) -> None:
    found = read(form, text)
    assert (found.whole, found.content) == (calls, content)


NO_CALLS = [
    (HERMES, "<tool_call>", "a mark alone"),
    (HERMES, "<tool_call>f(x=1)</tool_call>", "no JSON"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": tru}}</tool_call> So.', "not quite JSON"),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "a list of arguments"),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>', "a name that is a number"),
    (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "a name that can't be sent"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1', "an end in the middle"),
    (HERMES, '{"name": "f", "arguments": {}}', "no mark"),
    (LLAMA, '{"name": "Bob", "parameters": {}}', "a name that was not offered"),
    (LLAMA, '{"name": "f", "age": 5}', "another object"),
    (LLAMA, 'It is {"name": "f", "parameters": {}}', "in the middle of text"),
    (LLAMA, '<|python_tag|>f.call(x="1")', "code"),
    (LIST, "[TOOL_CALLS]", "a mark alone"),
    (LIST, "[TOOL_CALLS] [", "a list alone"),
    (LIST, "[TOOL_CALLS][1]", "a list of numbers"),
    (NAMED, "[TOOL_CALLS]f", "a name alone"),
    (NAMED, "[TOOL_CALLS]f[ARGS]x", "no object"),
    (NAMED, '[TOOL_CALLS]f[ARGS]{"x": 1', "an end in the middle"),
]


@pytest.mark.parametrize(
    ("form", "text"), [case[:2] for case in NO_CALLS], ids=[f"{c[0].name}: {c[2]}" for c in NO_CALLS]
)
def test_what_is_no_call_is_text(form: ToolFormat, text: str) -> None:
    found = read(form, text)
    assert (found.ended, found.content) == ({}, text)


def test_a_call_that_is_cut_stays_a_call() -> None:
    found = read(HERMES, '<tool_call>{"name": "f", "arguments": {"x": [1, "ab', cut=True)
    assert (found.calls, found.content) == ({0: ["f", '{"x": [1, "ab']}, "")


def test_a_call_without_a_name_that_is_cut_is_text() -> None:
    text = '<tool_call>{"name": "f'
    assert read(HERMES, text, cut=True).content == text


def test_the_calls_after_a_broken_one() -> None:
    text = '<tool_call>{"name": "f", "arguments": {!}</tool_call><tool_call>{"name": "g"}</tool_call>'
    found = read(HERMES, text)
    assert (found.broken, found.whole) == ({0}, [("g", {})])
    assert found.content == text[: text.index("</tool_call>") + len("</tool_call>")]


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_at_most_one_call(form: ToolFormat) -> None:
    two = next(text for f, text, calls, _, _ in CALLS if f is form and len(calls) == 2)
    assert read(form, two, many=False).whole == [F1]


def test_a_name_that_was_not_offered_ends_the_call_at_once() -> None:
    text = '{"name": "Bob", "type": "<|python_tag|>{"name": "f"}'
    whole = read(LLAMA, text)
    assert whole == said(LLAMA.parser(["f"], many=True), list(text))
    assert (whole.whole, whole.content) == ([("f", {})], '{"name": "Bob", "type": "')


def test_arguments_come_as_they_are_written() -> None:
    parser = HERMES.parser(["f"], many=True)
    seen = [
        parser.feed(piece) for piece in ('<tool_call>{"name": "f"', ', "arguments": {"x": "a', 'b"', "}}")
    ]
    assert seen[0] == [CallBegan(0, "f")]
    assert seen[1:3] == [[ArgumentsDelta(0, '{"x": "a')], [ArgumentsDelta(0, 'b"')]]


def test_wordings() -> None:
    text = 'A\n\n<tool_call>\n{"name":"f"}  </tool_call>\n<tool_call>{"name":"g"}</tool_call>'
    assert read(HERMES, text).ended == {
        0: Wording('\n{"name":"f"}  ', "\n\n"),
        1: Wording('{"name":"g"}', "\n"),
    }
    named = read(NAMED, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x":1}')
    assert named.ended == {0: Wording('{"x":1}', "", "abc123def")}
    listed = read(LIST, '[TOOL_CALLS] [{"name":"f","id":"i"},{"name":"g"}]')
    assert listed.ended == {0: Wording('{"name":"f","id":"i"}', " [", "i"), 1: Wording('{"name":"g"}', ",")}


def reasoned(text: str, *, opened: bool = False) -> tuple[str, str]:
    found = said(ReasoningText(PlainText(), ("<think>", "</think>"), opened=opened), [text])
    return found.reasoning, found.content


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nHm.\n\nYes.\n</think>\n\nHi <think>", False, "Hm.\n\nYes.", "Hi <think>"),
        ("\n<think></think>Hi", False, "", "Hi"),
        ("Hm.</think>\nHi\n", True, "Hm.", "Hi\n"),
        ("Hm. </thin", True, "Hm. </thin", ""),
        ("<thin", False, "", "<thin"),
        (" Hi </think>", False, "", " Hi </think>"),
    ],
    ids=["tags", "empty", "opened by the prompt", "never closed", "no tag", "no reasoning"],
)
def test_reasoning(text: str, opened: bool, reasoning: str, content: str) -> None:
    assert reasoned(text, opened=opened) == (reasoning, content)


def test_a_call_behind_reasoning_keeps_its_white_space_for_later() -> None:
    parser = ReasoningText(HERMES.parser(["f"], many=True), ("<think>", "</think>"), opened=True)
    found = said(parser, ['Hm\n</think>\n\n<tool_call>{"name": "f"}</tool_call>'])
    assert (found.reasoning, found.content, found.ended) == ("Hm", "", {0: Wording('{"name": "f"}', "\n\n")})


PIECES = [
    *("<tool_call>", "</tool_call>", "<tool", "_call>", "<|python_tag|>", "<|pyth", "[TOOL_CALLS]", "[ARGS]"),
    *("[CALL_ID]", "[TOOL", "<think>", "</think>", "</th", "{", "}", "[", "]", '"', "\\", ":", ",", ";", "\n", " "),
    *('{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "parameters": {"y": "é"}}', '{"x": 1}', "f", "1.5e3"),
    '{"name": "Bob", "parameters": {"x": "',
    *('"name": "f"', '"arguments": {', "true", "nul", "\\u00e9", "\\ud800", '{"name": "f", "arguments": {"x": ['),
]  # fmt: skip
garbage = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join)
good = st.lists(st.sampled_from([case[1] for case in CALLS]), min_size=1, max_size=2).map("".join)


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@given(text=st.one_of(garbage, good), cuts=st.lists(st.integers(0, 200)), data=st.data())
def test_any_split_gives_the_same(form: ToolFormat, text: str, cuts: list[int], data: Any) -> None:
    many, cut, opened = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.booleans())

    def parser() -> ReplyText:
        return ReasoningText(form.parser(["f", "g"], many=many), ("<think>", "</think>"), opened=opened)

    places = sorted({min(at, len(text)) for at in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = said(parser(), [text], cut=cut)
    assert said(parser(), pieces, cut=cut) == whole
    assert said(parser(), list(text), cut=cut) == whole
    for index in whole.ended:
        assert isinstance(json.loads(whole.calls[index][1]), dict)
        whole.content.encode()


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@given(garbage)
@example("[TOOL_CALLS][{}")
@example(" ; {")
def test_without_a_call_no_character_is_lost(form: ToolFormat, text: str) -> None:
    found = read(form, text)
    if not found.ended:
        assert found.content == text


strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@given(
    arguments=st.dictionaries(strings, values, max_size=3),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_what_is_written_in_the_formats_shape_is_read(
    form: ToolFormat, arguments: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    shape = form.shape
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    one, two = (f"{shape.before}{name}{shape.between}{written}{shape.after}" for name in ("f", "g"))
    found = read(form, f"{shape.begin}{one}{shape.separator}{two}{shape.end}")
    assert (found.whole, found.content) == ([("f", arguments), ("g", arguments)], "")
