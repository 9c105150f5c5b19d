"""The jinja2 sandbox that chat templates run in, with what Hugging Face's templates expect to find there.

A template comes with a model file, so it is trusted with little: it can't reach Python's
inside, its output is bounded, and so is its time wherever it prints something.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT = 64 * 1024 * 1024
"""Characters that one rendering may have; the longest request body is far below."""
MAX_SECONDS = 20.0

_MAX_REPEAT = 1024 * 1024
_MAX_EXPONENT = 64


class RaisedByTemplate(TemplateError):
    """The template called ``raise_exception``: it does not take these messages, and says why."""


class GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Where templates are compiled and run."""

    # Two characters of a template can ask for gigabytes: 'a' * 10**10.
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], autoescape=False
        )
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise SecurityError("the template computes too large a power")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                many = isinstance(one, str | list | tuple) and isinstance(other, int)
                if many and len(one) * other > _MAX_REPEAT:
                    raise SecurityError("the template repeats a value too often")
        return super().call_binop(context, operator, left, right)


def run(template: Template, variables: Mapping[str, Any]) -> str:
    """The template's output. Raises jinja2's SecurityError where it would have no bound."""
    pieces = []
    size = 0
    deadline = time.monotonic() + MAX_SECONDS
    for piece in template.generate(variables):
        size += len(piece)
        if size > MAX_OUTPUT:
            raise SecurityError(f"the template's output is longer than {MAX_OUTPUT} characters")
        if time.monotonic() > deadline:
            raise SecurityError(f"the template ran for longer than {MAX_SECONDS:.0f} s")
        pieces.append(piece)
    return "".join(pieces)


def raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def strftime_now(format: str) -> str:  # noqa: A002 - what templates call it
    return datetime.now().astimezone().strftime(format)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no escapes for HTML or Unicode, which jinja2's own filter writes."""
    if separators is not None:
        separators = (separators[0], separators[1])
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _escape_non_ascii(text) if ensure_ascii else text


def _escape_non_ascii(text: str) -> str:
    # json.dumps would escape a Guard's marks too, and nobody would find them again.
    def escape(match: re.Match[str]) -> str:
        return json.dumps(match[0])[1:-1]

    return re.sub(r"[^\x00-\x7f\U00012000-\U000187f7]+", escape, text)
