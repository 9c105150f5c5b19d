"""Who asks: API keys, and the namespace that keeps one key's cache from another's."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from onceread.server.errors import ApiError
from onceread.server.settings import DEFAULT_KEY_NAME, ApiKey


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is. Two keys of one name are one caller."""

    name: str = DEFAULT_KEY_NAME

    def namespace(self, cache_salt: str | None = None) -> str:
        """What the engine keeps apart: nothing is shared between two namespaces.

        The lengths are part of it, so that no name and salt can be made to look like another pair.
        """
        salt = cache_salt or ""
        return f"{len(self.name)}:{self.name}{len(salt)}:{salt}"


class Keys:
    """The API keys of a server. Without any, everyone is the default caller."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = [(_digest(key.secret.get_secret_value().encode()), key.name) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def caller(self, presented: bytes | None) -> Caller | None:
        """Whose key it is, None if nobody's."""
        if not self._keys:
            return Caller()
        # Digests have one length, and every key is compared: how long it takes says nothing.
        digest = _digest(presented or b"")
        found: Caller | None = None
        for secret, name in self._keys:
            if hmac.compare_digest(digest, secret):
                found = Caller(name)
        return found


async def authenticate(request: Request) -> Caller:
    """The caller, as a dependency of routes. Raises a 401 where a key is needed and missing or wrong."""
    keys: Keys = request.app.state.onceread.keys
    presented = _presented(request)
    caller = keys.caller(presented)
    if caller is None:
        message = (
            "Incorrect API key provided."
            if presented
            else "You didn't provide an API key: send it as 'Authorization: Bearer KEY'."
        )
        raise ApiError(
            401, message, code="invalid_api_key", headers={"WWW-Authenticate": 'Bearer realm="onceread"'}
        )
    return caller


def _presented(request: Request) -> bytes | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode("latin-1")  # as it came over the wire
    key = request.headers.get("x-api-key")
    return key.encode("latin-1") if key else None


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
