"""A running server's cache, seen and changed over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request

from pydantic import BaseModel, ValidationError

from onceread.cli.errors import CommandError, one_line
from onceread.library.address import opener, server_base
from onceread.server.cache_schemas import Cleared, Overview, PathList, PinBody, PinList, Warmed

_SECONDS = 60.0
_READING_SECONDS = 24 * 3600.0  # a long prompt on a small machine, without a byte until it is read
_SHOWN = 300

Answer = TypeVar("Answer", bound=BaseModel)


class ServerCache:
    """What `onceread cache` does, on a server. Every method raises CommandError."""

    def __init__(
        self, url: str, key: str | None = None, *, salt: str | None = None, of: str | None = None
    ) -> None:
        """``of``: with an admin key, the name of the API key whose part of the cache is meant."""
        if key is not None and not (key and key.isascii() and key.isprintable()):
            raise CommandError("--key: must be printable ASCII characters")  # never repeated
        try:
            self._base, host = server_base(url)
        except ValueError as error:
            raise CommandError(f"--url {error}") from None
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._opener = opener(host)
        self._whose = {
            name: value for name, value in (("cache_salt", salt), ("key", of)) if value is not None
        }

    def paths(self, limit: int, after: str | None) -> PathList:
        query = {"limit": str(limit), **({"after": after} if after else {})}
        return self._get("/cache/tree", PathList, query)

    def pins(self) -> PinList:
        return self._get("/cache/pins", PinList)

    def pin(self, id: str, name: str) -> PinBody:  # noqa: A002
        return self._send("POST", "/cache/pin", PinBody, {"id": id, "name": name})

    def unpin(self, id: str) -> None:  # noqa: A002
        self._call("DELETE", f"/cache/pin/{quote(id, safe='')}?{urlencode(self._whose)}", None, _SECONDS)

    def clear(self, *, everyone: bool) -> int:
        if not everyone:
            return self._send("POST", "/cache/clear", Cleared, {}).freed_bytes
        answer = self._call("POST", "/cache/clear", {"all": True}, _SECONDS)
        return self._read(Cleared, answer).freed_bytes

    def overview(self) -> Overview:
        return self._read(Overview, self._call("GET", "/cache", None, _SECONDS))

    def warm(self, what: Mapping[str, Any]) -> Warmed:
        return self._send("POST", "/cache/warm", Warmed, what, _READING_SECONDS)

    def _get(self, path: str, model: type[Answer], query: Mapping[str, str] | None = None) -> Answer:
        query = {**(query or {}), **self._whose}
        return self._read(model, self._call("GET", f"{path}?{urlencode(query)}", None, _SECONDS))

    def _send(
        self, method: str, path: str, model: type[Answer], body: Mapping[str, Any], seconds: float = _SECONDS
    ) -> Answer:
        return self._read(model, self._call(method, path, {**body, **self._whose}, seconds))

    def _read(self, model: type[Answer], raw: bytes) -> Answer:
        try:
            return model.model_validate_json(raw)
        except ValidationError:
            raise CommandError(f"{self._base} does not answer as an Onceread server does") from None

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = Request(self._base + path, data, headers, method=method)  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                raw: bytes = answer.read()
                return raw
        except HTTPError as error:
            raise CommandError(self._refusal(error)) from None
        except TimeoutError:
            raise CommandError(f"{self._base} did not answer in {seconds:g} s") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            why = one_line(reason) if isinstance(reason, BaseException) else str(reason)
            raise CommandError(
                f"no server answers at {self._base} ({why}); without --url the directory is used"
            ) from None

    def _refusal(self, error: HTTPError) -> str:
        try:
            found = json.loads(error.read())["error"]
            code, message = found["code"], str(found["message"])
        except (OSError, ValueError, TypeError, KeyError):
            return f"{self._base} answers with status {error.code}, and not as an Onceread server does"
        printable = "".join(c if c.isprintable() else " " for c in message)[:_SHOWN]
        return printable + (" (--key KEY)" if code == "invalid_api_key" else "")
