"""Conversations with tools in them, rendered: by the template where it knows tools, in plain words where not.

What goes in is put into a form that does not depend on the client: tools in canonical order, calls in the words
that the model wrote them in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from onceread.chat.errors import TemplateError
from onceread.chat.generic import in_words
from onceread.chat.rendered import Rendered
from onceread.chat.template import ChatTemplate
from onceread.chat.toolcalls import Wording
from onceread.chat.toolschemas import canonical_tools
from onceread.chat.wordings import Worded, free_mark, marked_name, put_wordings
from onceread.server.chat_schemas import ChatMessage
from onceread.server.state import Serving
from onceread.server.tool_schemas import Tool

_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def prepared_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    """Tools as templates get them."""
    return canonical_tools([tool.for_template() for tool in tools or ()])


def prepared(messages: Sequence[ChatMessage], serving: Serving, namespace: str) -> list[dict[str, Any]]:
    """Messages as :func:`render` takes them: a call that was issued here brings its ``wording`` along."""
    return [_prepared(message, serving, namespace) for message in messages]


def _prepared(message: ChatMessage, serving: Serving, namespace: str) -> dict[str, Any]:
    fields = message.for_template()
    issued, short = serving.issued, serving.style.tools.short_ids
    if message.tool_call_id is not None:
        own = issued.own_id(namespace, message.tool_call_id)
        fields["tool_call_id"] = own or (_short(message.tool_call_id) if short else message.tool_call_id)
    calls = message.tool_calls or []
    for call, made in zip(calls, fields.get("tool_calls", ()), strict=True):
        found = issued.find(namespace, call.id, call.function.name, call.function.arguments)
        wording = found.wording if found else None
        own = wording.own_id if wording else None
        if call.id is not None:
            made["id"] = own or (_short(call.id) if short else call.id)
        if wording is not None and short and own is None and len(calls) > 1 and wording.inside.endswith("}"):
            # The model gave its calls no ids, but the results of several must be told apart.
            inside = f'{wording.inside[:-1]}, "id": {json.dumps(made["id"])}}}'
            wording = Wording(inside, wording.before)
        made["wording"] = wording
    return fields


def render(
    serving: Serving,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Rendered:
    """What :func:`prepared` and :func:`prepared_tools` made, rendered. Raises ChatError."""
    style, template = serving.style, serving.template
    if not style.tools.native and (tools or not style.shows_calls):
        words = in_words(messages, tools, system=_takes_system(template))
        return template.render(
            words,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
    marked, worded, mark = _marked(messages, template.source)
    try:
        rendered = template.render(
            marked,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
        )
    except TemplateError as error:
        raise TemplateError(str(error).replace(mark, "")) from error
    if not worded:
        return rendered
    return put_wordings(rendered, mark, worded, style.tools, (style.think[1],) if style.think else ())


def _marked(
    messages: Sequence[Mapping[str, Any]], source: str
) -> tuple[list[dict[str, Any]], list[Worded], str]:
    """The messages without wordings, the names of the worded calls marked; the wordings; the mark."""
    plain: list[dict[str, Any]] = []
    worded: list[Worded] = []
    mark = ""
    if any(call.get("wording") for message in messages for call in message.get("tool_calls", ())):
        everything = json.dumps(messages, ensure_ascii=False, default=str)
        mark = free_mark(everything, source) or ""
    for message in messages:
        if not message.get("tool_calls"):
            plain.append(dict(message))
            continue
        calls = []
        for i, call in enumerate(message["tool_calls"]):
            bare = {key: value for key, value in call.items() if key != "wording"}
            wording = call.get("wording")
            if wording is not None and mark:
                name = marked_name(call["function"]["name"], mark)
                bare["function"] = {**call["function"], "name": name}
                worded.append(Worded(wording, message["content"], first=i == 0))
            calls.append(bare)
        plain.append({**message, "tool_calls": calls})
    return plain, worded, mark


@lru_cache(maxsize=8)
def _takes_system(template: ChatTemplate) -> bool:
    """Does the template show what the system says?"""
    try:
        text = template.render(
            [{"role": "system", "content": "-S-"}, {"role": "user", "content": "-U-"}]
        ).text
    except TemplateError:
        return False
    return "-S-" in text


def _short(call_id: str) -> str:
    """An id of nine letters and digits, always the same for the same id."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode(errors="replace")).digest()
    return "".join([_LETTERS[byte % len(_LETTERS)] for byte in digest[:9]])
