"""Which requests belong together: a client's name for its session, in the body or in a header."""

from __future__ import annotations

from fastapi import Request

from onceread.server.errors import invalid

HEADER = "x-session-id"
MAX_LENGTH = 256
SAYS = "A name for the session; the paths of one session are kept together. Also the header x-session-id."


def session_of(request: Request, key: str | None = None) -> str | None:
    """The session of a request; ``key`` is the body's own name for it, which goes before the header's."""
    if key:
        return key
    header = request.headers.get(HEADER)
    if header and len(header) > MAX_LENGTH:
        raise invalid(f"{HEADER}: must have at most {MAX_LENGTH} characters.", HEADER)
    return header or None
