"""The naive twin: what must be evaluated, by lists of tokens alone. Knows nothing of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Path:
    namespace: str
    tokens: tuple[int, ...]
    last_used: int = 0
    hits: int = 0


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


@dataclass
class Twin:
    """Remembers every path that was read. With ``cells`` it forgets the least valuable ones to stay below."""

    cells: int | None = None
    paths: list[Path] = field(default_factory=list)
    clock: int = 0

    def evaluated(self, prompt: tuple[int, ...], namespace: str = "default") -> int:
        """How many tokens of ``prompt`` must be computed now, the one for its logits included."""
        known = [common(p.tokens, prompt) for p in self.paths if p.namespace == namespace]
        return len(prompt) - min(max(known, default=0), len(prompt) - 1)

    def read(self, tokens: tuple[int, ...], namespace: str = "default") -> None:
        """``tokens`` are in the context from now on."""
        self.clock += 1
        hits = 0
        best = max(
            (p for p in self.paths if p.namespace == namespace),
            key=lambda p: common(p.tokens, tokens),
            default=None,
        )
        if best is not None and common(best.tokens, tokens):
            best.hits += 1
            best.last_used = self.clock
        for path in [
            p for p in self.paths if p.namespace == namespace and tokens[: len(p.tokens)] == p.tokens
        ]:
            hits += path.hits
            self.paths.remove(path)
        self.paths.append(Path(namespace, tokens, self.clock, hits))
        while self.cells is not None and self._used() > self.cells:
            worst = min(
                self.paths[:-1], key=lambda p: ((1 + p.hits) / (1 + self.clock - p.last_used), p.last_used)
            )
            self.paths.remove(worst)

    def _used(self) -> int:
        return len({(p.namespace, p.tokens[: i + 1]) for p in self.paths for i in range(len(p.tokens))})
