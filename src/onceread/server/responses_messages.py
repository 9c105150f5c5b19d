"""From the items of a conversation to the messages of a chat.

What a model did in one go, its reasoning, its text and its calls, are items of their own there and one message
here:

    items      message user | reasoning  message  function_call | function_call_output
    messages   user         | assistant                         | tool
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from onceread.server.responses_items import Item
from onceread.server.responses_store import Turn

Message = dict[str, Any]

_MODELS = ("reasoning", "function_call", "custom_tool_call")


def messages_of(instructions: str | None, turns: Iterable[Turn], items: Sequence[Item]) -> list[Message]:
    """The conversation that stored turns and new items make, after the instructions."""
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for turn in turns:
        messages += _of_clients(turn.input)
        messages.append(_one(turn.output))  # it is one reply, whatever is in it
    return messages + _of_clients(items)


def _of_clients(items: Sequence[Item]) -> list[Message]:
    messages: list[Message] = []
    group: list[Item] = []  # what the model did in one go, as far as one can tell

    def close() -> None:
        if any(item["type"] != "reasoning" for item in group):  # reasoning alone belongs to nothing
            messages.append(_one(group))
        group.clear()

    for item in items:
        if not _is_the_models(item):
            close()
            messages.append(_other(item))
            continue
        last = group[-1]["type"] if group else "reasoning"
        if item["type"] == "reasoning" and last != "reasoning":
            close()
        if item["type"] == "message" and last == "message":
            close()
        group.append(item)
    close()
    return messages


def _is_the_models(item: Item) -> bool:
    return item["type"] in _MODELS or (item["type"] == "message" and item["role"] == "assistant")


def _one(items: Sequence[Item]) -> Message:
    """The assistant's message of these items."""
    content: list[str] = []
    thought: list[str] = []
    calls: list[Message] = []
    for item in items:
        match item["type"]:
            case "message":
                content += [_text_of(part) for part in item["content"]]
            case "reasoning":
                thought += [part["text"] for part in item["content"] or item["summary"]]
            case "function_call":
                calls.append(_call(item, item["arguments"]))
            case "custom_tool_call":
                calls.append(_call(item, json.dumps({"input": item["input"]}, ensure_ascii=False)))
    said: Message = {"role": "assistant", "content": "".join(content)}
    if thought:
        said["reasoning_content"] = "\n".join(thought)
    if calls:
        said["tool_calls"] = calls
    return said


def _other(item: Item) -> Message:
    if item["type"] == "message":
        content = "\n".join([_text_of(part) for part in item["content"]])
        return {"role": item["role"], "content": content}
    return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}


def _call(item: Item, arguments: str) -> Message:
    function = {"name": item["name"], "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _text_of(part: Item) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text
