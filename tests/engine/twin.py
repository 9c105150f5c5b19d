"""What a reader of lists would have to compute, for tests that hold the engine to it."""

from __future__ import annotations

from onceread.native.model import Model


def least_to_read(model: Model, paths: list[list[int]], prompt: list[int]) -> int:
    """The naive twin: prompt tokens behind the last boundary that it shares with a path's beginning, at least one."""

    def boundaries(tokens: list[int]) -> dict[tuple[object, ...], int]:
        found: dict[tuple[object, ...], int] = {(): 0}
        said: list[object] = []
        for i, token in enumerate(tokens, 1):
            said += [-token] if model.vocab.is_control(token) else model.vocab.pieces[token]
            found[tuple(said)] = i
        return found

    own = boundaries(prompt)
    known: set[tuple[object, ...]] = {()}
    for path in paths:
        known.update(boundaries(path))
    return max(1, len(prompt) - max(n for said, n in own.items() if said in known))
