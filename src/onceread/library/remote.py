"""A server's model as an object: chats and completions over HTTP, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any, Literal, overload
from urllib.error import HTTPError, URLError
from urllib.request import Request

from onceread.library.address import opener, server_base

_SHOWN = 300  # characters of a server's own words in an error
_LONGEST_LINE = 2**26  # bytes of one event
_LONGEST_REFUSAL = 2**20  # bytes
_ASKING = 30.0  # seconds for a question that takes no computing

Chunk = dict[str, Any]


class RemoteError(Exception):
    """The server can't be reached, refuses, or breaks off. The message is one line.

    ``status`` is HTTP's, or None where there was no answer or it broke off.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RemoteLlama:
    """Any server with OpenAI's API; Onceread's and llama-server's say more about each reply.

    Calls may come from several threads: each has a connection of its own, closed when its stream is.
    """

    def __init__(
        self, url: str, api_key: str | None = None, model: str | None = None, *, timeout: float = 3600.0
    ) -> None:
        """``model`` is the name to ask for (default: the first that the server lists).

        ``timeout`` is how many seconds the server may be silent: while it reads a long prompt, it is.
        Raises ValueError for what is no address, or no key.
        """
        if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
            raise ValueError("the API key must be printable ASCII characters")  # never repeated
        self.url, host = server_base(url)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._opener = opener(host)
        self._model = model
        self._timeout = timeout

    @property
    def model(self) -> str:
        """The name that requests ask for. Raises RemoteError if the server has to be asked and can't be."""
        if self._model is None:
            answer = self._json(self._open("GET", "/v1/models", None, _ASKING))
            listed = answer.get("data")
            listed = listed if isinstance(listed, list) else []
            names = [_characters(str(one["id"])) for one in listed if isinstance(one, dict) and one.get("id")]
            if not names:
                raise RemoteError(f"{self.url} lists no models; name one")
            self._model = names[0]
        return self._model

    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True] = True, **options: Any
    ) -> Iterator[Chunk]: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False], **options: Any
    ) -> Chunk: ...

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = True, **options: Any
    ) -> Iterator[Chunk] | Chunk:
        """The next message: OpenAI's chunks, the last ones with the usage; or whole. Raises RemoteError.

        Closing the iterator stops the reply on the server. ``options`` that are None are left out.
        """
        return self._create("/v1/chat/completions", {"messages": list(messages)}, stream, options)

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[True] = True, **options: Any
    ) -> Iterator[Chunk]: ...

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[False], **options: Any
    ) -> Chunk: ...

    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool = True, **options: Any
    ) -> Iterator[Chunk] | Chunk:
        """How a raw prompt goes on, as :meth:`create_chat_completion` gives it. Raises RemoteError."""
        what = prompt if isinstance(prompt, str) else list(prompt)
        return self._create("/v1/completions", {"prompt": what}, stream, options)

    def _create(
        self, path: str, what: Mapping[str, Any], stream: bool, options: Mapping[str, Any]
    ) -> Iterator[Chunk] | Chunk:
        body = {"model": self.model, **what}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {name: value for name, value in options.items() if value is not None}
        response = self._open("POST", path, body, self._timeout)
        return self._chunks(response) if stream else self._json(response)

    def _chunks(self, response: HTTPResponse) -> Iterator[Chunk]:
        finished = False
        try:
            while line := response.readline(_LONGEST_LINE):
                name, _, value = line.partition(b":")
                if name.strip() != b"data":
                    continue
                if value.strip() == b"[DONE]":
                    return
                chunk = self._object(value)
                if error := chunk.get("error"):
                    raise RemoteError(_words(error))
                if not _well_formed(chunk):
                    raise self._odd()
                finished = finished or any(c.get("finish_reason") for c in chunk["choices"])
                yield chunk
        except TimeoutError:
            raise RemoteError(f"{self.url} was silent for {self._timeout:g} s") from None
        except (OSError, HTTPException) as error:
            raise RemoteError(f"{self.url} broke off: {_one_line(error)}") from None
        finally:
            response.close()  # the server stops writing
        if not finished:
            raise RemoteError(f"{self.url} broke off in the middle of the reply")

    def _json(self, response: HTTPResponse) -> Chunk:
        try:
            with response:
                raw = response.read()
        except TimeoutError:
            raise RemoteError(f"{self.url} was silent for {self._timeout:g} s") from None
        except (OSError, HTTPException) as error:
            raise RemoteError(f"{self.url} broke off: {_one_line(error)}") from None
        return self._object(raw)

    def _object(self, raw: bytes) -> Chunk:
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._odd()
        return found

    def _odd(self) -> RemoteError:
        return RemoteError(f"{self.url} does not answer as a server with OpenAI's API does")

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float) -> HTTPResponse:
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = Request(self.url + path, data, headers, method=method)  # noqa: S310 - server_base checked it
        try:
            response: HTTPResponse = self._opener.open(request, timeout=timeout)
            return response
        except HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except TimeoutError:
            raise RemoteError(f"{self.url} did not answer in {timeout:g} s") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            why = _one_line(reason) if isinstance(reason, BaseException) else str(reason)
            raise RemoteError(f"no server answers at {self.url} ({why})") from None

    def _refusal(self, error: HTTPError) -> RemoteError:
        try:
            found = json.loads(error.read(_LONGEST_REFUSAL))
            said = _words(found["error"] if "error" in found else found["detail"])
        except (OSError, HTTPException, ValueError, TypeError, KeyError, RecursionError):
            said = f"{self.url} answers with status {error.code}"
        return RemoteError(said, error.code)


def _well_formed(chunk: Chunk) -> bool:
    """Is it a chunk whose parts have the types that they should have? Of numbers those are left out that have not."""
    chunk["choices"] = choices = chunk.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return False
    for choice in choices:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict) or not isinstance(choice.get("finish_reason"), str | None):
            return False
        for part, name in ((choice, "text"), (delta, "content"), (delta, "reasoning_content")):
            said = part.get(name)
            if isinstance(said, str):
                part[name] = _characters(said)
            elif said is not None:
                return False
    for name in ("usage", "timings"):
        if chunk.get(name) is not None:
            chunk[name] = _numbers(chunk[name])
    return True


def _numbers(found: object) -> dict[str, Any]:
    """The numbers of an object, and of those in it."""
    if not isinstance(found, dict):
        return {}
    return {
        name: _numbers(value) if isinstance(value, dict) else value
        for name, value in found.items()
        if isinstance(value, int | float | dict)
    }


def _characters(text: str) -> str:
    """Half a character, which JSON can say and no file can hold, becomes the sign for what can't be read."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _words(error: object) -> str:
    """What a server says is wrong: OpenAI's object, or what others send for it."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("type") or error
    return "".join(c if c.isprintable() else " " for c in str(error))[:_SHOWN]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
