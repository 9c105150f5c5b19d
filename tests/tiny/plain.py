"""A tiny model with plain attention, as fast as they come, and texts split into its tokens by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gguf import GGUFReader

from onceread.native.model import Model
from onceread.native.vocabulary import Vocabulary
from tests.tiny.writer import KV_HEADS, TinyModel

LONGEST = 12  # bytes of a piece that chance chooses


FILLS = {"pre": 3, "suf": 4, "mid": 5, "rep": 6, "sep": 7}  # control tokens that nothing else needs


def write_plain(path: Path, tokenizer: GGUFReader, *, fills: bool = False) -> None:
    """Llama's shape: attention over everything before, and nothing else. ``fills``: it has tokens to fill gaps."""
    model = TinyModel(path, "llama", tokenizer, layers=2)
    for name, token in FILLS.items() if fills else ():
        model.file.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    model.head(KV_HEADS)
    model.norm("output_norm")
    for i in range(model.layers):
        layer = f"blk.{i}"
        model.norm(f"{layer}.attn_norm")
        model.attention(layer, normed=False)
        model.feed_forward(layer)
    model.finish()


@contextmanager
def plain_model(folder: Path, tokenizer: Path, *, fills: bool = False) -> Iterator[Model]:
    """The model, with another model's tokenizer and chat template."""
    path = folder / ("filling.gguf" if fills else "plain.gguf")
    if not path.exists():
        write_plain(path, GGUFReader(str(tokenizer)), fills=fills)
    with Model.load(path) as model:
        yield model


class Splitter:
    """Spells texts in tokens as a model may sample them and its tokenizer never would."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._by_piece = _by_piece(vocab)

    def given(self, *pieces: str | bytes) -> list[int]:
        """The tokens of exactly these pieces."""
        return [self._by_piece[piece.encode() if isinstance(piece, str) else piece] for piece in pieces]

    def by_chance(self, text: str, rng: random.Random) -> list[int]:
        """Some tokens that spell ``text``, cut between and inside characters, words and numbers alike."""
        data = text.encode()
        tokens: list[int] = []
        at = 0
        while at < len(data):
            longest = min(LONGEST, len(data) - at)
            n = rng.choice([n for n in range(1, longest + 1) if data[at : at + n] in self._by_piece])
            tokens.append(self._by_piece[data[at : at + n]])
            at += n
        return tokens


@cache
def _by_piece(vocab: Vocabulary) -> dict[bytes, int]:
    return {piece: token for token, piece in enumerate(vocab.pieces) if piece}
