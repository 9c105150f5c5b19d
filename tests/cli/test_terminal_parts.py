"""The parts of `onceread chat` that need no terminal: cleaning, options, personas, commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from onceread.cli.errors import one_line
from onceread.cli.terminal.commands import COMMANDS, CommandUnknown, parse
from onceread.cli.terminal.generation import OptionInvalid, option_names, parse_option
from onceread.cli.terminal.numbers import Totals, rows, short
from onceread.cli.terminal.persona import PersonaInvalid, read_persona
from onceread.cli.terminal.screen import clean, line
from onceread.library.reply import Reply


def test_no_control_character_but_line_breaks_and_tabs_is_left() -> None:
    everything = "".join(map(chr, range(0x300)))
    left = {c for c in clean(everything) if not c.isprintable()}
    assert left <= {"\n", "\t", "\xa0", "\xad"}  # a hard space, a soft hyphen
    assert clean("\x1b[31mred\x9b1mbold") == "[31mred1mbold"


@pytest.mark.parametrize(
    "text", ["héllo", "日本語", "👩‍👩‍👧 family", "שלום", "a\n\tb", "x" * 10_000], ids=lambda text: text[:9]
)
def test_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_a_line_is_one_line_and_no_longer_than_it_may_be() -> None:
    assert line("a\n b\x1b") == "a b"
    assert line("x" * 100, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("max_tokens", "5", 5),
        ("stop", "END", "END"),
        ("stop", '["a", "b"]', ["a", "b"]),
        ("ignore_eos", "true", True),
        ("regex", "[0-9]+", "[0-9]+"),
    ],
)
def test_an_option_is_json_or_text(name: str, text: str, value: Any) -> None:
    assert parse_option(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("temperature", "hot", "must be a valid number"),
        ("temperature", "200", "less than or equal to 100"),
        ("temprature", "1", "did you mean temperature"),
        ("stream", "true", "no option 'stream'"),
        ("tools", "[]", "no option 'tools'"),
    ],
)
def test_an_option_that_can_not_be_is_refused(name: str, text: str, why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        parse_option(name, text)


def test_a_raw_prompt_has_no_options_of_the_chats() -> None:
    assert "reasoning_effort" in option_names()
    assert "reasoning_effort" not in option_names(raw=True)
    assert parse_option("top_a", "0.2", any_name=True) == 0.2
    with pytest.raises(OptionInvalid):
        parse_option("stream", "true", any_name=True)


def test_a_persona_is_text(tmp_path: Path) -> None:
    file = tmp_path / "pirate.txt"
    file.write_text("\ufeffYou are a pirate.\n", encoding="utf-8")
    persona = read_persona(file)
    assert (persona.name, persona.system, persona.greeting) == ("pirate", "You are a pirate.", "")


CARD = {
    "name": "Ada",
    "description": "{{char}} knows {{user}}.",
    "personality": "exact",
    "scenario": "",
    "first_mes": "Hello, {{User}}!",
    "mes_example": "<BOT>: yes",
}


@pytest.mark.parametrize(
    "card", [CARD, {"spec": "chara_card_v2", "data": CARD}], ids=["version 1", "version 2"]
)
def test_a_persona_is_a_character_card(card: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "ada.json"
    file.write_text(json.dumps(card))
    persona = read_persona(file)
    assert persona.name == "Ada"
    assert (
        persona.system == "You are Ada.\n\nAda knows User.\n\nPersonality: exact\n\nHow Ada talks:\nAda: yes"
    )
    assert persona.greeting == "Hello, User!"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.png", b"\x89PNG\r\n", "is a picture: export"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[]", "no character card"),
        ("a.json", b'{"data": {"name": " "}}', "no character card"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt", b"x" * (2**20 + 1), "larger than 1 MiB"),
    ],
)
def test_what_is_no_persona_is_said(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PersonaInvalid, match=why):
        read_persona(tmp_path / name)


def test_commands_are_parsed_and_others_refused() -> None:
    assert parse("/set temperature 0.7 ") == ("set", "temperature 0.7")
    assert parse("/exit") == ("quit", "")
    for text in ("/", "/nope", "/etc/passwd is a file"):
        with pytest.raises(CommandUnknown, match="there is no command"):
            parse(text)


def test_numbers_that_are_not_told_are_said_not_to_be() -> None:
    reply = Reply("x", "", "interrupted", None, None, None, None, None, None, 1.0, None)
    assert short(reply) == "it was stopped"
    assert dict(rows(reply, Totals()))["prompt"] == "not told"


def test_the_documentation_lists_every_command_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
    listed = re.findall(r"^\| `/(\w.*?)` \| (.+) \|$", page, re.MULTILINE)
    assert listed == [(one.usage.removeprefix("/").replace("|", "\\|"), one.help) for one in COMMANDS]


def test_a_reply_of_no_tokens_is_refused_for_a_library_and_a_server_read_it_otherwise() -> None:
    with pytest.raises(OptionInvalid, match="max_tokens must be at least 1"):
        parse_option("max_tokens", "0")


def test_an_error_of_the_system_is_told_without_its_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothere") as raised:
        (tmp_path / "nothere").open()
    assert one_line(raised.value) == f"{tmp_path / 'nothere'}: No such file or directory"
