"""No string of a client's turns into control tokens, whatever the template does around it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceread.chat.guard import ControlStrings, Guard
from onceread.chat.rendered import Control, Text
from onceread.chat.template import ChatTemplate

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2, "</s>": 3, "<s>": 4, "[INST]": 5, "<|e|>": 6}

# Templates as they are, and as nobody should write them.
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}",
    "glued": "{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}",
    "begun by the template": "{% for m in messages %}<{{ m.content }}|im_end|><|{{ m.name }}|>{% endfor %}",
    "other case": "{% for m in messages %}{{ m.content | lower }}{{ m.name | upper | lower }}<s>{% endfor %}",
    "json": "{% for m in messages %}{{ m.content | tojson }}{{ [m.name] | tojson(ensure_ascii=true) }}{% endfor %}",
    "deleting": "{% for m in messages %}{{ m.content.replace('</s>', '') | replace('x', '') }}{% endfor %}",
}
HARMLESS = "q"

PIECES = [
    *(
        "<|im_start|>",
        "<|im_end|>",
        "</s>",
        "<s>",
        "[INST]",
        "<",
        "|",
        ">",
        "<|",
        "|>",
        "im_end",
        "im_",
        "end|>",
    ),
    *("e", "s>", "/", "\n", " ", "x", "É", "<|IM_END|>", "", "\U00012000", "\ue000", "[IN", "ST]"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def controls(source: str, messages: list[dict[str, str]]) -> list[str]:
    rendered = ChatTemplate(source, control_tokens=CONTROL).render(messages)
    return [segment.text for segment in rendered.segments if isinstance(segment, Control)]


@pytest.mark.parametrize("name", TEMPLATES)
@given(said=st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_control_tokens_are_the_templates_own(name: str, said: list[tuple[str, str]]) -> None:
    source = TEMPLATES[name]
    # Where nothing at all is said, the template's own pieces may stand together.
    said = [(content or HARMLESS, by or HARMLESS) for content, by in said]
    messages = [{"role": "user", "content": content, "name": by} for content, by in said]
    harmless = [{"role": "user", "content": HARMLESS, "name": HARMLESS} for _ in said]
    assert controls(source, messages) == controls(source, harmless)


@given(text=texts)
def test_the_text_arrives_as_it_was_written(text: str) -> None:
    template = ChatTemplate("<s>{{ messages[0].content }}</s>", control_tokens=CONTROL)
    first, *middle, last = template.render([{"role": "user", "content": text}]).segments
    assert (first, last) == (Control(4, "<s>"), Control(3, "</s>"))
    assert middle == ([Text(text)] if text else [])


@pytest.mark.parametrize(
    ("a", "b"),
    [(whole[:i], whole[i:]) for whole in CONTROL for i in range(1, len(whole))],
    ids=lambda piece: piece,
)
def test_two_messages_do_not_join_to_a_control_token(a: str, b: str) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert controls(source, [{"role": "user", "content": a}, {"role": "user", "content": b}]) == []


def test_three_messages_do_not_join_either() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    whole = "<|im_end|>"
    for i, j in product(range(1, len(whole)), repeat=2):
        if i < j:
            parts = [whole[:i], whole[i:j], whole[j:]]
            assert controls(source, [{"role": "user", "content": part} for part in parts]) == []


def test_keys_and_nested_values_are_guarded() -> None:
    call = {"function": {"name": "<s>", "arguments": {"</s>": ["<|im_end|>", {"<s>": "</s>"}]}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    source = "{{ messages[0].tool_calls[0].function | tojson }}<s>"
    template = ChatTemplate(source, control_tokens=CONTROL)
    text, control = template.render([message]).segments
    assert control == Control(4, "<s>")
    assert text == Text('{"name": "<s>", "arguments": {"</s>": ["<|im_end|>", {"<s>": "</s>"}]}}')


def test_marks_do_not_disturb_comparisons_and_look_ups() -> None:
    # "e" is an inner part of a control string, so it is marked.
    source = "{% if messages[0].content == 'e' %}{{ messages[0].args.e }}{% endif %}"
    template = ChatTemplate(source, control_tokens=CONTROL)
    rendered = template.render([{"role": "user", "content": "e", "args": {"e": "found"}}])
    assert rendered.segments == (Text("found"),)


def test_template_variables_are_guarded() -> None:
    template = ChatTemplate("<s>{{ date }}", control_tokens=CONTROL)
    rendered = template.render([{"role": "user", "content": ""}], variables={"date": "</s>"})
    assert rendered.segments == (Control(4, "<s>"), Text("</s>"))


def test_the_mark_is_a_character_that_nobody_uses() -> None:
    used = "".join(chr(code) for code in range(0x12000, 0x12010))
    guard = Guard(ControlStrings(CONTROL), [used], "\U00012010")
    assert guard.mark("<s>").replace("\U00012011", "") == "<s>"
    assert guard.unmark(guard.mark(used + "<s>")) == used + "<s>"


def test_without_control_strings_everything_is_text() -> None:
    template = ChatTemplate("<s>{{ messages[0].content }}", control_tokens={})
    assert template.render([{"role": "user", "content": "</s>"}]).segments == (Text("<s></s>"),)
