"""The answer to raw prompts in OpenAI's words: whole, or chunk by chunk as the engine's events come."""

from __future__ import annotations

from typing import Any

from onceread.engine.request import Completed, DoneEvent, Event, Explanation, FinishEvent, TextEvent, Usage
from onceread.server.explain import explain_field
from onceread.server.logprobs import TextLogprobsWriter, TokenNames
from onceread.server.reply_head import reply_head, stream_end
from onceread.server.state import Serving
from onceread.server.text_schemas import CompletionRequest
from onceread.server.usage import approximate_field, timings, usage_body

Chunk = dict[str, Any]


class TextAnswer:
    """:meth:`whole`, or :meth:`begin`, :meth:`take` each event, :meth:`end`."""

    def __init__(self, body: CompletionRequest, serving: Serving, model: str | None = None) -> None:
        """``model`` is what the answer calls the model, if not by its name."""
        self._body = body
        self._serving = serving
        self._model = model or serving.name
        self._names = TokenNames(serving.model.vocab)
        self._n = body.n or 1
        self._writers: list[TextLogprobsWriter] = []
        self._head: Chunk = {}
        self._last: Chunk | None = None  # a choice's end, held back: the request's last chunk has more to say
        self._explanations: dict[int, Explanation | None] = {}
        self.usages: list[Usage] = []  # of the prompts that are done

    def whole(self, answers: list[Completed]) -> dict[str, Any]:
        """The body of ``/v1/completions``."""
        choices: list[dict[str, Any]] = []
        for echo, answer in zip(self._echo(), answers, strict=True):
            for i, text in enumerate(answer.texts):
                logprobs = None
                if self._body.logprobs is not None:
                    logprobs = TextLogprobsWriter(self._names).write(answer.logprobs[i])
                choices.append(
                    {
                        "index": len(choices),
                        "text": echo + text,
                        "logprobs": logprobs,
                        "finish_reason": answer.reasons[i],
                    }
                )
        usages = [answer.usage for answer in answers]
        return {
            **reply_head("cmpl", "text_completion", self._model),
            "choices": choices,
            "usage": usage_body(usages).model_dump(),
            "timings": timings(usages).model_dump(),
            **approximate_field(usages),
            **explain_field(self._body.explain, [answer.explanation for answer in answers]),
        }

    def begin(self) -> list[Chunk]:
        """What a stream begins with."""
        self._head = reply_head("cmpl", "text_completion", self._model)
        if self._body.include_usage:
            self._head["usage"] = None  # in every chunk but the last, says the API
        self._writers = [TextLogprobsWriter(self._names) for _ in range(len(self._body.prompt) * self._n)]
        if not self._body.echo:
            return []
        echoes = self._echo()
        return [self._chunk(i, echoes[i // self._n]) for i in range(len(self._writers))]

    def take(self, prompt: int, event: Event) -> list[Chunk]:
        """What a stream tells of an event of the request for ``prompt``."""
        match event:
            case TextEvent():
                if not (event.text or event.logprobs):
                    return []
                index = prompt * self._n + event.index
                wanted = self._body.logprobs is not None
                logprobs = self._writers[index].write(event.logprobs) if wanted else None
                return [self._chunk(index, event.text, logprobs)]
            case FinishEvent():
                before = [] if self._last is None else [self._last]
                self._last = self._chunk(prompt * self._n + event.index, "", None, event.reason)
                return before
            case DoneEvent():
                self.usages.append(event.usage)
                self._explanations[prompt] = event.explanation
        return []

    def end(self) -> list[Chunk]:
        """What a stream ends with."""
        explanations = [self._explanations.get(prompt) for prompt in range(len(self._body.prompt))]
        more = {**approximate_field(self.usages), **explain_field(self._body.explain, explanations)}
        return stream_end(self._head, self._last, self.usages, self._body.include_usage, more)

    def _chunk(self, index: int, text: str, logprobs: Any = None, reason: str | None = None) -> Chunk:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _echo(self) -> list[str]:
        """What each prompt's replies begin with."""
        if not self._body.echo:
            return [""] * len(self._body.prompt)
        vocab = self._serving.model.vocab
        return [
            prompt if isinstance(prompt, str) else vocab.detokenize(prompt).decode(errors="replace")
            for prompt in self._body.prompt
        ]
