"""Where cache breakpoints lie in a prompt, in tokens, and what they make of a prompt's cost.

A place in the conversation is found by rendering it up to there: as far as that agrees with the prompt, the prompt
will agree with any other that goes on otherwise from there. Nothing is put into the prompt to find it again, which
could change how it is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceread.chat.errors import ChatError
from onceread.engine.request import Usage
from onceread.engine.sequence import as_tokens, common_prefix
from onceread.server.anthropic_conversation import Cut
from onceread.server.anthropic_schemas import UsageBody
from onceread.server.chat_render import prepared, prepared_tools, render
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.state import Serving


def token_counts(
    cuts: Sequence[Cut],
    prompt: tuple[int, ...],
    body: ChatCompletionRequest,
    serving: Serving,
    namespace: str,
) -> tuple[int, ...]:
    """How many tokens of ``prompt``, which ``body`` was rendered to, lie before each cut; ascending, none twice."""
    if not cuts:
        return ()
    messages = prepared(body.messages, serving, namespace)
    tools = prepared_tools(body.tools)
    whole = as_tokens(prompt)
    counts = set()
    for cut in cuts:
        some = _up_to(cut, messages)
        try:
            rendered = render(
                serving, some, tools, add_generation_prompt=False, variables=body.template_variables
            )
            counts.add(common_prefix(as_tokens(serving.tokenizer.chat(rendered)), whole))
        except ChatError:  # a template may refuse what it sees here, though not the whole
            continue
    return tuple(sorted(counts - {0}))


def usage_body(usage: Usage, breakpoints: tuple[int, ...], sent: int) -> UsageBody:
    """``usage`` in Anthropic's words.

    Everything that is read is kept. What they call created is what was evaluated up to the last breakpoint; what
    lies behind it counts as plain input. ``sent``: tokens of the prompt that the breakpoints were counted in; the
    one that was read may spell the same text in others.
    """
    created = 0
    if breakpoints:
        until = breakpoints[-1] + usage.prompt_tokens - sent
        created = min(max(0, until - usage.cached_tokens), usage.evaluated_tokens)
    return UsageBody(
        input_tokens=usage.evaluated_tokens - created,
        cache_creation_input_tokens=created,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
    )


def _up_to(cut: Cut, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    some = messages[: cut.messages]
    if some:
        last = {**some[-1], "content": some[-1]["content"][: cut.characters]}
        calls = last.pop("tool_calls", [])[: cut.calls]
        some = [*some[:-1], {**last, "tool_calls": calls} if calls else last]
    if all(message["role"] == "system" for message in some):
        # Many templates want a user's message. It goes on otherwise than the conversation does.
        following = messages[cut.messages]["content"] if cut.messages < len(messages) else ""
        some = [*some, {"role": "user", "content": "2" if following.startswith("1") else "1"}]
    return some
