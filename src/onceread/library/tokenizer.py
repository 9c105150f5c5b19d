"""``Llama.tokenizer()``: text to tokens and back, by the names that llama-cpp-python has for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceread.native.errors import TokenizeFailed

if TYPE_CHECKING:
    from onceread.native.vocabulary import Vocabulary


class LlamaTokenizer:
    """A model's vocabulary; to be used while its `Llama` is open."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of UTF-8 text. With ``special`` control tokens may be written out. Raises RuntimeError."""
        try:
            return self._vocab.tokenize(text, add_special=add_bos, parse_special=special)
        except TokenizeFailed as error:
            raise RuntimeError(str(error)) from error

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The text of tokens, with ``special`` that of control tokens, too. ``prev_tokens`` change nothing."""
        ids = [int(token) for token in tokens]
        size = self._vocab.size
        outside = next((token for token in ids if not 0 <= token < size), None)
        if outside is not None:
            raise ValueError(f"tokens: {outside} is not a token id of this model (0 to {size - 1})")
        text = self._vocab.shown(ids) if special else self._vocab.detokenize(ids)
        # Some vocabularies put a space before the first word, which a text that begins with BOS does not have.
        return text[1:] if ids[:1] == [self._vocab.bos] and text.startswith(b" ") else text

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """:meth:`tokenize`, of a string."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """:meth:`detokenize`, as a string."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")
