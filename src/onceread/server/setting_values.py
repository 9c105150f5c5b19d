"""What single settings may be and how they are written: sizes, keys, hosts, origins."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from pydantic import SecretStr

from onceread.cache.contract import MIN_MEMORY

DEFAULT_KEY_NAME = "default"
MIN_CACHE_DISK = 256 * 1024**2

_UNITS = {"": 1} | {
    unit + binary: base**power
    for power, unit in enumerate("KMGT", 1)
    for binary, base in (("", 1000), ("I", 1024))
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key that clients may present. Keys of one name share a cache; names never see each other's."""

    name: str
    secret: SecretStr

    @classmethod
    def parse(cls, text: str) -> ApiKey:
        """``NAME=SECRET``; a bare secret is named ``default``. Errors never repeat the text."""
        name, separator, secret = text.strip().partition("=")
        if not separator:
            name, secret = DEFAULT_KEY_NAME, name
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) and separator:
            raise ValueError(
                "a key's name may hold letters, digits, '.', '_' and '-', at most 64: NAME=SECRET"
            )
        if not secret.strip("=") or not secret.isprintable() or not secret.isascii():
            raise ValueError("must be NAME=SECRET, with a secret of printable ASCII characters")
        return cls(name, SecretStr(secret))


def check_admin_key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if secret and (secret != secret.strip() or not secret.isprintable() or not secret.isascii()):
        raise ValueError("must be printable ASCII characters, without spaces around them")
    return value


def parse_size(value: object) -> object:
    """``16MiB``, ``500kB``, ``2T`` or a number of bytes, as bytes. What is not text is left alone."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]I?|)B?\s*", value.upper())
    if match is None:
        raise ValueError("must be a size such as 16MiB, 500kB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def check_cache_ram(value: int) -> int:
    if 0 < value < MIN_MEMORY:
        raise ValueError("must be at least 64MiB (it also holds what waits to be written to disk) or 0")
    return value


def check_cache_disk(value: int) -> int:
    if value < MIN_CACHE_DISK:
        raise ValueError("must be at least 256MiB")
    return value


def parse_list(value: object) -> object:
    """Text with commas, as the environment has it, or a list, as flags and the file have it."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list | tuple):
        return [item.strip() if isinstance(item, str) else item for item in value if item != ""]
    return value


def parse_keys(value: object) -> object:
    value = parse_list(value)
    if not isinstance(value, list):
        raise ValueError("must be a list of NAME=SECRET")
    found = [item if isinstance(item, ApiKey) else ApiKey.parse(str(item)) for item in value]
    by_secret = {key.secret.get_secret_value(): key.name for key in found}
    if any(by_secret[key.secret.get_secret_value()] != key.name for key in found):
        raise ValueError("two keys of different names have the same secret")
    return tuple(found)


def check_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", value):
        raise ValueError("must be a host name or an IP address")
    return value


def check_origin(value: str) -> str:
    if value != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", value):
        raise ValueError("must be an origin such as http://localhost:3000, or *")
    return value


def is_loopback(host: str) -> bool:
    """Can only this machine reach a server bound to ``host``?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False  # a name: whatever it resolves to
