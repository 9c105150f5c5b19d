"""Options of a reply as people type them: ``temperature 0.7``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceread.server.body import RequestModel

# Fields of a request that a terminal decides itself, or can't show.
_NOT_HERE = {
    "prompt",
    "echo",
    "best_of",
    "suffix",
    "messages",
    "model",
    "stream",
    "stream_options",
    "n",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "modalities",
    "audio",
    "add_generation_prompt",
    "continue_final_message",
    "explain",
    "ebnf",
    "structural_tag",
    "self",  # these three would be taken for arguments of the session
    "llama",
    "system",
}


class OptionInvalid(Exception):
    """The message is one line."""


def option_names(*, raw: bool = False) -> list[str]:
    """All that can be set for a chat's reply, or for a raw prompt's."""
    return sorted(set(_schema(raw).model_fields) - _NOT_HERE)


def unknown(name: str, *, raw: bool = False) -> str:
    """What is wrong with an option's name; empty if it is one of Onceread's."""
    names = option_names(raw=raw)
    if name in names:
        return ""
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
    return f"there is no option {name!r}" + (f"; did you mean {near[0]}?" if near else ".")


def parse_option(name: str, text: str, *, any_name: bool = False, raw: bool = False) -> Any:
    """The value for ``name``: JSON, or else the text itself. Raises OptionInvalid.

    With ``any_name`` a name that Onceread does not know is let through, for another server to judge.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if problem := unknown(name, raw=raw):
        if any_name and name not in _NOT_HERE:
            return value
        raise OptionInvalid(problem)
    _check(name, value, raw)
    if name in ("max_tokens", "max_completion_tokens") and value == 0:
        raise OptionInvalid(f"{name} must be at least 1; left out, a reply goes on to the context's limit")
    return value


def parse_pairs(pairs: Iterable[str], *, any_name: bool = False, raw: bool = False) -> dict[str, Any]:
    """Options given as ``NAME=VALUE``. Raises OptionInvalid."""
    found = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals:
            raise OptionInvalid(f"--set {pair}: write it as NAME=VALUE")
        found[name] = parse_option(name, text, any_name=any_name, raw=raw)
    return found


def _schema(raw: bool) -> type[RequestModel]:
    # The web framework's part of these takes a moment to import: not for --help.
    from onceread.server.chat_schemas import ChatCompletionRequest
    from onceread.server.text_schemas import CompletionRequest

    return CompletionRequest if raw else ChatCompletionRequest


def _check(name: str, value: Any, raw: bool) -> None:
    from onceread.server.body import from_fields
    from onceread.server.errors import ApiError

    prompt = {"prompt": "x"} if raw else {"messages": [{"role": "user", "content": "x"}]}
    try:
        from_fields(_schema(raw), {**prompt, name: value})
    except ApiError as error:
        raise OptionInvalid(str(error)) from None
