"""``"explain": true``: where a prompt left the nearest path that the cache knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from onceread.engine.request import Explanation


class ExplanationBody(BaseModel):
    """Where the prompt left the nearest known path of its namespace, and how the two go on from there."""

    position: int  # tokens that the two have in common
    shared: str  # the last text that they have in common
    known: str  # how the known path goes on; empty if it ends there
    prompt: str  # how the prompt goes on; empty if it ends there


def explain_field(wanted: bool | None, found: Sequence[Explanation | None]) -> dict[str, Any]:
    """The field ``explain`` of an answer, if it was asked for: one, or a list where there are several prompts.

    Null where the cache knew nothing of the namespace.
    """
    if not wanted:
        return {}
    bodies = [
        ExplanationBody(
            position=one.position, shared=one.shared, known=one.known, prompt=one.prompt
        ).model_dump()
        if one
        else None
        for one in found
    ]
    return {"explain": bodies[0] if len(bodies) == 1 else bodies}
