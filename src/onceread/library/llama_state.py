"""What `Llama.save_state` gives: where it stood. The computed state stays with the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3

from onceread.engine.request import Logits, TokenArray
from onceread.native.vocabulary import Vocabulary


@dataclass(frozen=True)
class LlamaState:
    """Tokens, and with ``logits_all`` their logits. Can be pickled, and loaded by any `Llama` of the same vocabulary.

    It holds no computed state: that lies in the cache, which knows it by these tokens. So it is small, loading it
    takes no time, and what another cache lacks is evaluated there when it is wanted.
    """

    input_ids: TokenArray = field(repr=False)  # shape (n_tokens,)
    scores: Logits = field(repr=False)  # shape (n_tokens, vocabulary), or (0, vocabulary) without logits_all
    n_tokens: int
    llama_state: bytes  # the vocabulary's name: see `vocabulary_name`
    llama_state_size: int
    seed: int | None


def vocabulary_name(vocab: Vocabulary) -> bytes:
    """16 bytes. Two models of one name spell the same tokens the same way."""
    hasher = blake3()
    for piece in vocab.pieces:
        hasher.update(len(piece).to_bytes(4, "little") + piece)
    return hasher.digest(length=16)
