"""A server's address, and how it is called: no redirects, and no proxy to this machine."""

from __future__ import annotations

from http.client import HTTPMessage
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from onceread.server.setting_values import is_loopback


def server_base(url: str) -> tuple[str, str]:
    """What paths are appended to, and the host. The address of the OpenAI API will do, too.

    Raises ValueError.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return (
                f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}",
                parts.hostname,
            )
    except ValueError:  # brackets that don't close, a port that is no number
        pass
    raise ValueError(f"{url} is not an address such as http://127.0.0.1:8000")


class _Stay(HTTPRedirectHandler):
    """A redirect is an error: the key must not go anywhere else."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def opener(host: str) -> OpenerDirector:
    """What opens requests to ``host``."""
    # A proxy knows another 127.0.0.1 than we do.
    handlers = [ProxyHandler({})] if is_loopback(host) else []
    return build_opener(_Stay, *handlers)
