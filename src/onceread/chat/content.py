"""The content of one message, in all the shapes that APIs allow, as one string."""

from __future__ import annotations

import json

from onceread.chat.errors import ContentInvalid, ContentUnsupported

_PART_SEPARATOR = "\n"


def join_content(content: object) -> str:
    """``content`` as text: a string as it is, None as nothing, text parts joined by line breaks.

    Raises ContentUnsupported for parts that are not text, ContentInvalid for anything else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ContentInvalid("must be a string or a list of content parts")
    return _PART_SEPARATOR.join([_part_text(part, i) for i, part in enumerate(content)])


def parse_arguments(text: str) -> object:
    """A tool call's arguments as chat templates expect them: the object that the JSON says, else the text."""
    try:
        arguments = json.loads(text.strip() or "{}")  # some clients write nothing where there are none
    except (ValueError, RecursionError):  # what a model wrote need not be JSON
        return text
    return arguments if isinstance(arguments, dict) else text


def _part_text(part: object, index: int) -> str:
    if not isinstance(part, dict):
        raise ContentInvalid(f"part {index} must be an object such as {{'type': 'text', 'text': ...}}")
    kind = part.get("type")
    if kind != "text":
        shown = repr(kind[:40]) if isinstance(kind, str) else "missing"
        raise ContentUnsupported(f"part {index} has the type {shown}; only parts of type 'text' can be read")
    text = part.get("text")
    if not isinstance(text, str):
        raise ContentInvalid(f"part {index} must have a string as its text")
    return text
