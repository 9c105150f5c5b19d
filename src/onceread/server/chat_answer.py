"""The answer to a chat request in OpenAI's words: whole, or chunk by chunk as the engine's events come."""

from __future__ import annotations

from typing import Any

from onceread.engine.request import Completed, DoneEvent, Event, Explanation, FinishEvent, TextEvent, Usage
from onceread.server.chat_prompt import dropped_field
from onceread.server.chat_reply import ChoiceWriter
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.chat_turn import ChatTurn
from onceread.server.explain import explain_field
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.state import Serving
from onceread.server.usage import approximate_field, timings, usage_body

Chunk = dict[str, Any]


class ChatAnswer:
    """Once the turn's request is made: :meth:`whole`, or :meth:`begin`, :meth:`take` each event, :meth:`end`."""

    def __init__(
        self, body: ChatCompletionRequest, serving: Serving, turn: ChatTurn, model: str | None = None
    ) -> None:
        """``model`` is what the answer calls the model, if not by its name."""
        self._body = body
        self._model = model or serving.name
        self._turn = turn
        self._names = TokenNames(serving.model.vocab)
        self._head: Chunk = {}
        self._writers: list[ChoiceWriter] = []
        self._last: Chunk | None = None  # a choice's end, held back: the request's last chunk has more to say
        self._explanation: Explanation | None = None
        self._dropped: tuple[int, ...] = ()
        self.usages: list[Usage] = []  # once the DoneEvent was taken

    def whole(self, answer: Completed) -> dict[str, Any]:
        """The body of ``/v1/chat/completions``."""
        body, choices = self._body, []
        for index, text in enumerate(answer.texts):
            writer, reason = ChoiceWriter(self._turn.reader()), answer.reasons[index]
            writer.write(text)
            writer.finish(reason)
            entries = chat_logprobs(answer.logprobs[index], self._names) if body.logprobs else None
            choices.append(
                {
                    "index": index,
                    "message": writer.message,
                    "logprobs": None if entries is None else _logprobs(entries),
                    "finish_reason": writer.finish_reason(reason),
                }
            )
        return {
            **reply_head("chatcmpl", "chat.completion", self._model),
            "choices": choices,
            "usage": usage_body([answer.usage]).model_dump(),
            "timings": timings([answer.usage]).model_dump(),
            **approximate_field([answer.usage]),
            **explain_field(body.explain, [answer.explanation]),
            **dropped_field(self._turn.may_drop, self._turn.dropped, answer.dropped),
        }

    def begin(self) -> list[Chunk]:
        """What a stream begins with."""
        self._head = reply_head("chatcmpl", "chat.completion.chunk", self._model)
        if self._body.include_usage:
            self._head["usage"] = None  # in every chunk but the last, says the API
        n = self._body.n or 1
        self._writers = [ChoiceWriter(self._turn.reader()) for _ in range(n)]
        return [self._chunk(i, {"role": "assistant", "content": "", "refusal": None}) for i in range(n)]

    def take(self, event: Event) -> list[Chunk]:
        """What a stream tells of an event."""
        match event:
            case TextEvent():
                return self._text(event)
            case FinishEvent():
                writer = self._writers[event.index]
                out = [self._chunk(event.index, delta) for delta in writer.finish(event.reason)]
                if self._last is not None:
                    out.append(self._last)
                self._last = self._chunk(event.index, {}, None, writer.finish_reason(event.reason))
                return out
            case DoneEvent():
                self.usages.append(event.usage)
                self._explanation = event.explanation
                self._dropped = event.dropped
        return []

    def end(self) -> list[Chunk]:
        """What a stream ends with."""
        more = {
            **approximate_field(self.usages),
            **explain_field(self._body.explain, [self._explanation]),
            **dropped_field(self._turn.may_drop, self._turn.dropped, self._dropped),
        }
        return stream_end(self._head, self._last, self.usages, self._body.include_usage, more)

    def _text(self, event: TextEvent) -> list[Chunk]:
        out = []
        entries = _logprobs(chat_logprobs(event.logprobs, self._names)) if self._body.logprobs else None
        deltas = self._writers[event.index].write(event.text)
        if not deltas and event.logprobs:
            deltas = [{"content": ""}]
        for delta in deltas:
            out.append(self._chunk(event.index, delta, entries))
            entries = None if entries is None else _logprobs([])
        return out

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice]}


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
