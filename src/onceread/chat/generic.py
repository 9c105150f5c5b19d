"""Tools for models whose template knows none: told of in the system message, called in Hermes' form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onceread.chat.hermes import CLOSE, OPEN

_RESULT, _RESULT_END = "<tool_response>", "</tool_response>"

_SAYS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within {open}{close} XML tags:
{open}
{{"name": <function-name>, "arguments": <args-json-object>}}
{close}"""


def in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool = True
) -> list[dict[str, Any]]:
    """The conversation for a template that knows neither tools nor calls nor results.

    ``system``: the template takes system messages; else the first message says what the tools are. A call
    may bring the very words it was written in, as ``wording``.
    """
    said: list[dict[str, Any]] = []
    for message in messages:
        match message["role"]:
            case "assistant" if message.get("tool_calls"):
                said.append(_with_calls(message))
            case "tool" | "function":
                result = f"{_RESULT}\n{message['content']}\n{_RESULT_END}"
                if said and said[-1].get("results"):
                    said[-1]["content"] += f"\n{result}"
                else:
                    said.append({"role": "user", "content": result, "results": True})
            case _:
                said.append(dict(message))
    for message in said:
        message.pop("results", None)
    if not tools:
        return said
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    told = _SAYS.format(tools=signatures, open=OPEN, close=CLOSE)
    if said and (said[0]["role"] in ("system", "developer") or not system):
        content = said[0]["content"]
        joined = [content, told] if system else [told, content]
        return [{**said[0], "content": "\n\n".join([text for text in joined if text])}, *said[1:]]
    return [{"role": "system", "content": told}, *said]


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    for call in message["tool_calls"]:
        wording = call.get("wording")
        if wording is None:
            function = call["function"]
            fields = {"name": function["name"], "arguments": function["arguments"]}
            before = "\n" if content else ""
            inside = f"\n{json.dumps(fields, ensure_ascii=False)}\n"
        else:
            before, inside = wording.before, wording.inside
        content += f"{before}{OPEN}{inside}{CLOSE}"
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": content}
