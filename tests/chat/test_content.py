"""Message content in all its shapes."""

from __future__ import annotations

import pytest

from onceread.chat.content import join_content, parse_arguments
from onceread.chat.errors import ContentInvalid, ContentUnsupported


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "more": 1}], "a\nb"),
    ],
)
def test_text(content: object, text: str) -> None:
    assert join_content(content) == text


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio"}, {"text": "a"}, {"type": 5}],
)
def test_other_parts_are_unsupported(part: object) -> None:
    with pytest.raises(ContentUnsupported, match="part 1"):
        join_content([{"type": "text", "text": "a"}, part])


@pytest.mark.parametrize(
    "content", [5, True, {}, ["a"], [None], [{"type": "text"}], [{"type": "text", "text": 5}]]
)
def test_wrong_shapes(content: object) -> None:
    with pytest.raises(ContentInvalid):
        join_content(content)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [('{"a": [1]}', {"a": [1]}), ("[1]", "[1]"), ("{", "{"), ("", {}), ("[" * 100000, "[" * 100000)],
    ids=["object", "list", "broken", "empty", "deep"],
)
def test_arguments(text: str, arguments: object) -> None:
    assert parse_arguments(text) == arguments
