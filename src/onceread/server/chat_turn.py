"""A conversation on its way to the engine, and its replies on their way back: the same for every face that chats.

A face puts what its clients send into a :class:`ChatCompletionRequest`, and tells what a :class:`ReplyReader` finds.
"""

from __future__ import annotations

from dataclasses import replace

from onceread.engine.request import Request as EngineRequest
from onceread.native.params import Constraint, SamplingParams
from onceread.server.chat_prompt import ChatPrompt, chat_prompt
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.generation_fields import capped, moved_reuse
from onceread.server.reply_reader import ReplyReader
from onceread.server.settings import Settings
from onceread.server.state import Serving


class ChatTurn:
    """What becomes of the conversation on its way to the engine, and of the replies on their way back."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        serving: Serving,
        namespace: str,
        settings: Settings,
        session: str | None = None,
    ) -> None:
        self.may_drop = (body.overflow or settings.overflow) == "shift"
        self.dropped: tuple[int, ...] = ()
        self._body = body
        self._serving = serving
        self._namespace = namespace
        self._session = session
        self._settings = settings
        self._prompt: ChatPrompt | None = None

    def request(self) -> EngineRequest:
        """What the engine is asked. Raises ApiError, ChatError."""
        body, serving, settings = self._body, self._serving, self._settings
        max_tokens = capped(body.token_limit, settings.max_tokens_limit)
        prompt = chat_prompt(body, serving, self._namespace, may_drop=self.may_drop, max_tokens=max_tokens)
        self._prompt = prompt
        self.dropped = prompt.dropped
        return EngineRequest(
            prompt=prompt.tokens,
            sampling=self._sampling(prompt),
            max_tokens=max_tokens,
            stop=(*(body.stop or ()), *serving.template.stops),
            n=body.n or 1,
            logprobs=body.alternatives,
            namespace=self._namespace,
            session=self._session,
            alignable=True,
            ignore_eos=bool(body.ignore_eos),
            spelled=serving.style.spelled(
                serving.model.vocab.control_tokens, tools=bool(body.callable_tools)
            ),
            reuse_moved=moved_reuse(body.reuse_moved, settings),
            least_moved=settings.reuse_moved_min,
            shifts=body.reuse_moved is not False,
            shorter=prompt.shorter,
            explain=bool(body.explain),
        )

    def count(self) -> int:
        """The tokens of the whole prompt, also where it does not fit. Raises ApiError, ChatError."""
        return len(
            chat_prompt(self._body, self._serving, self._namespace, may_drop=False, max_tokens=None).tokens
        )

    def asked_stop(self, stop: str | None) -> str | None:
        """The stop string that ended a reply, if it is one that the client gave, and not the template's."""
        return stop if stop in (self._body.stop or ()) else None

    def reader(self) -> ReplyReader:
        """For one reply, once the request is made."""
        body, style, prompt = self._body, self._serving.style, self._prompt
        assert prompt is not None
        reader = style.reader(
            [tool.function.name for tool in body.callable_tools],
            many=body.many_calls,
            splits_reasoning=body.reasoning_format != "none",
            thinks=prompt.thinks,
        )
        short = style.tools.short_ids
        return ReplyReader(reader, self._serving.issued, self._namespace, short_ids=short)

    def _sampling(self, prompt: ChatPrompt) -> SamplingParams:
        vocab = self._serving.model.vocab
        sampling = self._body.sampling(vocab.size)
        if prompt.forced is not None:
            said = sampling.constraint or Constraint("lark", "", "tool_choice")
            sampling = replace(sampling, constraint=replace(said, kind="lark", text=prompt.forced))
        if sampling.constraint is not None and prompt.thinks:
            tags = self._serving.style.think
            sampling = replace(
                sampling, constraint=replace(sampling.constraint, after=tags[1] if tags else "")
            )
        if self._body.tools and self._body.tool_choice == "none":
            # The tools stay in the prompt, so that what was read of them counts; but there is to be no call.
            mark = self._serving.model.vocab.marks.get(self._serving.style.tools.opens)
            if mark is not None:
                return replace(sampling, logit_bias=(*sampling.logit_bias, (mark, float("-inf"))))
        return sampling
