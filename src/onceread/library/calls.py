"""One call of a completing method, from its arguments to its answer: the same for `Llama` and `AsyncLlama`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from onceread.engine.request import Completed, Request
from onceread.library.answers import Chunks
from onceread.library.host import Host
from onceread.library.requests import (
    Seeds,
    chat_body,
    chat_request,
    namespace_of,
    text_body,
    text_request,
)
from onceread.server.chat_answer import ChatAnswer
from onceread.server.chat_turn import ChatTurn
from onceread.server.text_answer import TextAnswer


class Call(ABC):
    """Made first; then :meth:`request`, and when that is submitted, :meth:`whole` or :meth:`chunks`."""

    param: ClassVar[str]  # what the prompt comes in

    def __init__(
        self, host: Host, model_path: str, given: Mapping[str, Any], options: Mapping[str, Any], seeds: Seeds
    ) -> None:
        """``given``: the method's arguments by name; ``options``: those beyond llama-cpp-python's."""
        self._host = host
        self._given = given
        self._name = given["model"] or model_path
        self.streams = bool(given["stream"])
        self._read(options, seeds)

    @abstractmethod
    def _read(self, options: Mapping[str, Any], seeds: Seeds) -> None:
        """Make the body of a face's request of the arguments."""

    @abstractmethod
    def request(self) -> Request:
        """What the engine is asked. Raises what `as_python` translates."""

    @abstractmethod
    def whole(self, answer: Completed) -> dict[str, Any]: ...

    @abstractmethod
    def chunks(self) -> Chunks: ...


class TextCall(Call):
    """``create_completion``."""

    param: ClassVar[str] = "prompt"

    def _read(self, options: Mapping[str, Any], seeds: Seeds) -> None:
        self._body = text_body(self._given, options, self._host.setup, seeds)
        self._answer: TextAnswer | None = None

    def request(self) -> Request:
        serving = self._host.serving()
        self._answer = TextAnswer(self._body, serving, self._name)
        return text_request(self._body, self._given, serving, self._host.setup)

    def whole(self, answer: Completed) -> dict[str, Any]:
        assert self._answer is not None
        return self._answer.whole([answer])

    def chunks(self) -> Chunks:
        answer = self._answer
        assert answer is not None
        return Chunks(answer.begin, lambda event: answer.take(0, event), answer.end)


class ChatCall(Call):
    """``create_chat_completion``."""

    param: ClassVar[str] = "messages"

    def _read(self, options: Mapping[str, Any], seeds: Seeds) -> None:
        self._body = chat_body(self._given, options, self._host.setup, seeds)
        self._answer: ChatAnswer | None = None

    def request(self) -> Request:
        serving, body = self._host.serving(), self._body
        turn = ChatTurn(body, serving, namespace_of(body), self._host.setup.settings, body.prompt_cache_key)
        request = chat_request(turn, self._given)
        self._answer = ChatAnswer(body, serving, turn, self._name)
        return request

    def whole(self, answer: Completed) -> dict[str, Any]:
        assert self._answer is not None
        body = self._answer.whole(answer)
        for choice in body["choices"]:
            message = choice["message"]
            if message.get("tool_calls"):  # also under the older name, which llama-cpp-python always gives
                message["function_call"] = dict(message["tool_calls"][0]["function"])
        return body

    def chunks(self) -> Chunks:
        answer = self._answer
        assert answer is not None
        return Chunks(answer.begin, answer.take, answer.end)
