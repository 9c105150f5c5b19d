"""Who asks: API keys, and the namespace that keeps one key's cache from another's."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import SecretStr

from onceread.server.errors import ApiError
from onceread.server.setting_values import DEFAULT_KEY_NAME, ApiKey

ADMIN = "(admin)"  # no API key can have this name


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is. Two keys of one name are one caller."""

    name: str = DEFAULT_KEY_NAME
    admin: bool = False  # sees and changes everyone's
    clears_all: bool = False  # may forget everyone's, though not see it

    def namespace(self, cache_salt: str | None = None) -> str:
        """What the engine keeps apart: nothing is shared between two namespaces.

        The lengths are part of it, so that no name and salt can be made to look like another pair.
        """
        salt = cache_salt or ""
        return f"{len(self.name)}:{self.name}{len(salt)}:{salt}"


class Keys:
    """The keys of a server. Without API keys, everyone but the admin is the default caller."""

    def __init__(
        self, keys: Sequence[ApiKey], admin_key: SecretStr | None = None, *, local: bool = False
    ) -> None:
        """``local``: only this machine can reach the server."""
        self._keys = [(_digest(key.secret.get_secret_value().encode()), Caller(key.name)) for key in keys]
        self._needed = bool(keys)
        self._everyone = Caller(clears_all=local and admin_key is None)
        if admin_key is not None:
            admin = Caller(ADMIN, admin=True, clears_all=True)
            self._keys.append((_digest(admin_key.get_secret_value().encode()), admin))

    def __bool__(self) -> bool:
        """Does a request need a key?"""
        return self._needed

    def caller(self, presented: bytes | None) -> Caller | None:
        """Whose key it is, None if nobody's."""
        # Digests have one length, and every key is compared: how long it takes says nothing.
        digest = _digest(presented or b"")
        found = None if self._needed else self._everyone
        for secret, caller in self._keys:
            if hmac.compare_digest(digest, secret):
                found = caller
        return found


_IN_THE_DOCUMENT = HTTPBearer(scheme_name="ApiKey", auto_error=False)


async def authenticate(request: Request, _said: object = Depends(_IN_THE_DOCUMENT)) -> Caller:
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
