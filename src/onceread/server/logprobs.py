"""Log probabilities in the two shapes that OpenAI's APIs give them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onceread.engine.request import TokenLogprob

if TYPE_CHECKING:
    from onceread.native.vocabulary import Vocabulary

_FLOOR = -9999.0  # what OpenAI says for minus infinity, which JSON can't


class TokenNames:
    """How tokens are shown to clients."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab

    def name_and_bytes(self, token: int, piece: bytes) -> tuple[str, bytes]:
        """A token's text; ``bytes:\\xe2\\x80`` for a part of a character; a control token's name."""
        if not piece:
            text = self._vocab.text(token)
            return text, text.encode()
        try:
            return piece.decode(), piece
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece), piece


def chat_logprobs(tokens: Iterable[TokenLogprob], names: TokenNames) -> list[dict[str, Any]]:
    """The entries of a chat choice's ``logprobs.content``."""

    def entry(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
        name, raw = names.name_and_bytes(token, piece)
        return {"token": name, "logprob": max(logprob, _FLOOR), "bytes": list(raw)}

    return [
        {**entry(t.token, t.piece, t.logprob), "top_logprobs": [entry(*alternative) for alternative in t.top]}
        for t in tokens
    ]


class TextLogprobsWriter:
    """The ``logprobs`` object of one choice of a text completion, chunk by chunk."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0  # characters of the reply before the next token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for t in tokens:
            name, _ = self._names.name_and_bytes(t.token, t.piece)
            top = {self._names.name_and_bytes(i, piece)[0]: max(p, _FLOOR) for i, piece, p in t.top}
            # As the API has always done: the chosen token is there even if it is not among the best.
            top.setdefault(name, max(t.logprob, _FLOOR))
            found["tokens"].append(name)
            found["token_logprobs"].append(max(t.logprob, _FLOOR))
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(t.piece))
        return found
