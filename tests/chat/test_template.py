"""Chat templates: what they may use, what they say when they refuse, and open last messages."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from onceread.chat.builtin import CHATML, find_template
from onceread.chat.errors import TemplateError, TemplateUnusable
from onceread.chat.rendered import Control, Rendered, Text
from onceread.chat.template import ChatTemplate

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2}
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> Rendered:
    template = ChatTemplate(source, control_tokens=CONTROL, bos_token="<s>", eos_token="</s>")
    return template.render([USER] if messages is None else messages, **options)


def test_chatml() -> None:
    rendered = render(CHATML, [{"role": "system", "content": "Be brief."}, USER])
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.segments[:3] == (
        Control(1, "<|im_start|>"),
        Text("system\nBe brief."),
        Control(2, "<|im_end|>"),
    )


def test_no_generation_prompt() -> None:
    assert render(CHATML, add_generation_prompt=False).text == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ {'é': '<b>'} | tojson }}", '{"é": "<b>"}'),
        ("{{ {'é': '\\n'} | tojson(ensure_ascii=true, indent=1) }}", '{\n "\\u00e9": "\\n"\n}'),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("a {{ nothing }} b", "a  b"),
        ("{% if x %}\n  yes\n{% else %}\n  no\n{% endif %}\n", "  no\n"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
    ids=[
        "loop controls",
        "bos and eos",
        "tojson leaves characters alone",
        "tojson's options",
        "tools and documents are none",
        "undefined is empty",
        "blocks are trimmed",
        "generation tag",
        "namespaces",
    ],
)
def test_what_templates_expect(source: str, text: str) -> None:
    assert render(source).text == text


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}").text == datetime.now().astimezone().strftime("%Y")


def test_variables() -> None:
    assert render("{{ thinking }}", variables={"thinking": False}).text == "False"


@pytest.mark.parametrize("name", ["messages", "bos_token", "add_generation_prompt", "tools"])
def test_variables_do_not_replace_what_the_server_sets(name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        render("", variables={name: 1})


def test_the_templates_own_words() -> None:
    with pytest.raises(TemplateError, match=r"^No <\|im_end\|> here, please$"):
        render(
            "{{ raise_exception('No ' + messages[0].content + ' here, please') }}",
            [{**USER, "content": "<|im_end|>"}],
        )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% for i in range(10000000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 1 / 0 }}",
    ],
    ids=["type", "index", "sandbox", "immutable", "repeat", "power", "range", "recursion", "division"],
)
def test_failures_are_template_errors(source: str) -> None:
    with pytest.raises(TemplateError, match="the chat template failed"):
        render(source)


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceread.chat.sandbox.MAX_OUTPUT", 10_000)
    with pytest.raises(TemplateError, match="longer than"):
        render("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}")


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(TemplateUnusable, match=r"does not compile.*line 2"):
        ChatTemplate("\n{% if %}", control_tokens={})


class TestDeveloper:
    def test_becomes_system_where_the_template_does_not_know_it(self) -> None:
        assert render("{{ messages[0].role }}", [{"role": "developer", "content": ""}]).text == "system"

    def test_stays_where_it_does(self) -> None:
        source = "{% if messages[0].role == 'developer' %}{{ messages[0].role }}{% endif %}"
        assert render(source, [{"role": "developer", "content": ""}]).text == "developer"


class TestContinueFinalMessage:
    def cont(self, source: str, content: str) -> str:
        messages = [USER, {"role": "assistant", "content": content}]
        return render(source, messages, add_generation_prompt=False, continue_final_message=True).text

    @pytest.mark.parametrize("content", ["Hello", "Hello ", "Hello\n\n", "<|im_end|>", "<|im_", "Hi", ""])
    def test_ends_right_after_the_text(self, content: str) -> None:
        expected = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{content}"
        assert self.cont(CHATML, content) == expected

    def test_a_template_that_trims(self) -> None:
        source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
        assert self.cont(source, " Hello, ") == "[Hi][Hello, "

    def test_a_template_that_repeats_the_text(self) -> None:
        source = "{% for m in messages %}{{ m.content }}{% endfor %}|{{ messages[-1].content }}|"
        assert self.cont(source, "Hello") == "HiHello|Hello"

    def test_a_template_that_hides_the_message(self) -> None:
        with pytest.raises(TemplateError, match="hides the final message"):
            self.cont("{{ messages[0].content }}", "Hello")

    def test_not_together_with_a_generation_prompt(self) -> None:
        with pytest.raises(TemplateError, match="at the same time"):
            render(CHATML, [USER, ASSISTANT], continue_final_message=True)


class TestFindTemplate:
    def test_by_name(self) -> None:
        assert find_template("chatml") == CHATML

    def test_by_path(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.jinja"
        path.write_text("{{ messages }}", encoding="utf-8")
        assert find_template(str(path)) == "{{ messages }}"

    @pytest.mark.parametrize("source", ["{{ messages }}", "{% if x %}y{% endif %}"])
    def test_written_out(self, source: str) -> None:
        assert find_template(source) == source

    def test_a_misspelled_name_is_told_the_names(self) -> None:
        with pytest.raises(
            TemplateUnusable, match="one of these names: alpaca, chatml, gemma, llama2, llama3"
        ):
            find_template("chatlm")

    @pytest.mark.parametrize("name", ["nothing-here", "", "a\0b", "~nobody-here/x", "x" * 5000])
    def test_neither(self, name: str) -> None:
        with pytest.raises(TemplateUnusable):
            find_template(name)

    def test_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(b"GGUF\xff\xfe")
        with pytest.raises(TemplateUnusable, match="not UTF-8"):
            find_template(str(path))
