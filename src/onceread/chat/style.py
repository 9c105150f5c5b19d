"""How a model talks: the form of its tool calls and the tags it thinks between, as its template shows them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from onceread.chat.hermes import Hermes
from onceread.chat.llama3 import Llama3
from onceread.chat.mistral import ARGS, CALLS, Mistral
from onceread.chat.reasoning import ReasoningText, Tags, tags_of
from onceread.chat.toolcalls import PlainText, ReplyText, ToolFormat

_HERMES = re.compile(r'\{\\?"name\\?"')
_XML = re.compile("<function=|<arg_key>|<invoke|<tool_calls>")


@dataclass(frozen=True, slots=True)
class Style:
    """What a chat template tells of its model."""

    tools: ToolFormat
    think: Tags | None
    single: bool  # its template takes one call in a message
    shows_calls: bool  # its template does something with calls in the history

    @staticmethod
    @lru_cache(maxsize=8)
    def of(template: str) -> Style:
        """The style of the model that ``template``, a source, is for."""
        return Style(
            tools=_format_of(template),
            think=tags_of(template),
            single="single tool-calls" in template,
            shows_calls="tool_calls" in template,
        )

    def spelled(self, control_tokens: Mapping[str, int], *, tools: bool) -> frozenset[int]:
        """Control tokens that the text of a reply must show."""
        marks: Iterable[str] = (*(self.tools.marks if tools else ()), *(self.think or ()))
        return frozenset(control_tokens[mark] for mark in marks if mark in control_tokens)

    def reader(
        self, tools: Collection[str], *, many: bool, splits_reasoning: bool, thinks: bool = False
    ) -> ReplyText | None:
        """For one reply of a model that was offered ``tools``; None if all of its text is content.

        ``thinks``: the reply begins inside of the tags.
        """
        text: ReplyText | None = None
        if tools:
            text = self.tools.parser(tools, many=many and not self.single)
        if self.think is not None and splits_reasoning:
            text = ReasoningText(text or PlainText(), self.think, opened=thinks)
        return text


def _format_of(template: str) -> ToolFormat:
    if re.search(r"\btools\b", template):
        if CALLS in template:
            return Mistral(named=ARGS in template)
        # Others write XML inside of the same mark, or lists inside of one like it.
        if "<tool_call>" in template and _HERMES.search(template) and not _XML.search(template):
            return Hermes()
        if "<|start_header_id|>" in template and '"parameters": ' in template:
            return Llama3()
    return Hermes(native=False)
