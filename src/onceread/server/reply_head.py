"""What every answer of OpenAI's APIs begins with, and how their streams end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from onceread import __version__
from onceread.engine.request import Usage
from onceread.server.usage import timings, usage_body


def reply_head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """Id, kind, time, model: the same in all chunks of one answer."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"onceread-{__version__}",
    }


def stream_end(
    head: Mapping[str, Any],
    last: Mapping[str, Any] | None,
    usages: Sequence[Usage],
    include_usage: bool,
    more: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The last choice's last chunk, and the usage if asked for; timings and ``more`` are on whichever is last."""
    times = {"timings": timings(usages).model_dump(), **more}
    if not include_usage:
        return [{**last, **times}] if last is not None else []
    usage = {**head, "choices": [], "usage": usage_body(usages).model_dump(), **times}
    return [dict(last), usage] if last is not None else [usage]
