"""Whose part of the cache a request may see or change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceread.cache.names import namespace_id
from onceread.server.auth import Caller
from onceread.server.errors import ApiError, invalid
from onceread.server.state import AppState, Serving

if TYPE_CHECKING:
    from onceread.cache.store import Store


def store_of(state: AppState, serving: Serving) -> Store:
    """The store. Raises a 404 that says why there is none."""
    store = serving.engine.store
    if store is None:
        raise ApiError(404, f"There is no cache behind the context: {why_off(state)}.", code="cache_off")
    return store


def why_off(state: AppState) -> str:
    if state.settings.cache_ram == 0:
        return "the server was started with --cache-ram 0"
    return "this kind of model can't be stored yet, only kept in the context"


def acting_namespace(caller: Caller, key: str | None, cache_salt: str | None) -> str:
    """The namespace that a request is about: the caller's own, or for an admin that of the key's name."""
    if key is None:
        return caller.namespace(cache_salt)
    if not caller.admin:
        raise admin_required("name another key")
    return Caller(key).namespace(cache_salt)


def visible(caller: Caller, key: str | None, cache_salt: str | None) -> set[bytes] | None:
    """The namespaces that a request may see; None is all of them, which an admin sees who names no key."""
    if caller.admin and key is None:
        if cache_salt:
            raise invalid("cache_salt: give key as well, to say whose salt it is.", "cache_salt")
        return None
    return {namespace_id(acting_namespace(caller, key, cache_salt))}


def admin_required(what: str) -> ApiError:
    return ApiError(403, f"Only the admin key may {what}.", code="admin_required")
