"""A request of the Responses API as a chat, and what is wrong with it in the API's own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onceread.server.body import from_fields
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.errors import ApiError
from onceread.server.generation_fields import GenerationFields
from onceread.server.responses_messages import Message
from onceread.server.responses_schemas import ResponsesRequest

# What both have under the same name, and this API hands on as it is.
_SHARED = frozenset(GenerationFields.model_fields) - {
    "model",
    "max_tokens",
    "n",
    "stop",
    "stream_options",
    "user",
}
_OVERFLOW = {"auto": "shift", "disabled": "error"}


def chat_of(body: ResponsesRequest, messages: Sequence[Message]) -> ChatCompletionRequest:
    """The chat that continues ``messages``. Raises ApiError."""
    fields: dict[str, Any] = body.model_dump(
        mode="json", by_alias=True, exclude_none=True, include=set(_SHARED)
    )
    fields["messages"] = list(messages)
    fields["continue_final_message"] = False  # a response is a message of its own
    if body.stop is not None:
        fields["stop"] = list(body.stop)
    if body.token_limit is not None:
        fields["max_tokens"] = body.token_limit
    if body.tools is not None:
        fields["tools"] = [
            {
                "type": "function",
                "function": tool.model_dump(include={"name", "description", "parameters", "strict"}),
            }
            for tool in body.functions
        ]
    if body.tool_choice is not None:
        fields["tool_choice"] = body.tool_choice
    if body.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = body.parallel_tool_calls
    if body.text_format is not None:
        fields["response_format"] = body.text_format.for_chat()
    if body.truncation is not None:
        fields["overflow"] = _OVERFLOW[body.truncation]
    if body.wants_logprobs:
        fields["logprobs"] = True
        fields["top_logprobs"] = body.top_logprobs or 0
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.chat_template_kwargs is not None:
        fields["chat_template_kwargs"] = body.chat_template_kwargs
    try:
        return from_fields(ChatCompletionRequest, fields)
    except ApiError as error:
        raise renamed(error, body) from None


def renamed(error: ApiError, body: ResponsesRequest) -> ApiError:
    """``error`` with the parameters that this API has other names for."""
    names: Mapping[str, str] = {"messages": "input", "max_tokens": "max_output_tokens"}
    if body.text_format is not None:
        names = {**names, "response_format": "text.format"}
    for chats, ours in names.items():
        if error.param is not None and error.param.partition(".")[0].partition("[")[0] == chats:
            param = ours + error.param[len(chats) :]
            return replace(error, param=param, message=error.message.replace(chats, ours, 1))
    return error
