"""Embeddings in llama-cpp-python's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from onceread.engine.embeddings import Embedded
from onceread.engine.pooling import normalized
from onceread.library.errors import InvalidParameter
from onceread.library.host import Host
from onceread.server.embeddings import embedding_engine, tokenized

Texts = str | Sequence[str]


class Embedding:
    """Texts on their way to vectors."""

    param = "input"

    def __init__(self, host: Host, texts: Texts, *, truncate: bool) -> None:
        """Queues them. Raises what `as_python` translates."""
        several = [texts] if isinstance(texts, str) else list(texts)
        if not all(isinstance(text, str) for text in several):
            raise InvalidParameter("input: must be a string or a list of strings", "input")
        self.single = isinstance(texts, str)
        engine = embedding_engine(host.known())
        limit = engine.plan().limit
        inputs = [tokens[:limit] if truncate else tokens for tokens in tokenized(several, engine)]
        self.tokens = sum(map(len, inputs))
        self.future: Future[Embedded] = engine.submit(inputs)

    def wait(self) -> Embedded:
        """What came of it; if the wait is broken off, nothing more is computed."""
        try:
            return self.future.result()
        finally:
            self.future.cancel()  # does nothing once it is done

    def vectors(self, found: Embedded, *, normalize: bool) -> list[Any]:
        """One for each text: a list of numbers, or of such lists, one a token, where nothing is pooled."""
        return [(normalized(vector) if normalize else vector).tolist() for vector in found]

    def body(self, found: Embedded, model: str) -> dict[str, Any]:
        """OpenAI's, with the numbers as the model gives them: nothing is normalized."""
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": vector, "index": index}
                for index, vector in enumerate(self.vectors(found, normalize=False))
            ],
            "model": model,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        }
