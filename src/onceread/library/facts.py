"""What can be asked of a `Llama` without reading anything: its vocabulary and its sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onceread.engine.request import Logits
from onceread.library.host import Host
from onceread.library.setup import POOLINGS
from onceread.library.tokenizer import LlamaTokenizer
from onceread.native.vocabulary import Vocabulary


class Facts:
    """All of it raises Closed once the `Llama` is."""

    _host: Host

    @property
    def _vocab(self) -> Vocabulary:
        return self._host.known().model.vocab

    def tokenizer(self) -> LlamaTokenizer:
        """The model's."""
        return LlamaTokenizer(self._vocab)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 text. With ``special`` control tokens may be written out."""
        with self._host.using():
            return self.tokenizer().tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The text of tokens, with ``special`` that of control tokens, too."""
        with self._host.using():
            return self.tokenizer().detokenize(tokens, prev_tokens, special)

    def token_bos(self) -> int:
        """What texts begin with; -1 if nothing."""
        return self._vocab.bos

    def token_eos(self) -> int:
        """What texts end with; -1 if nothing."""
        return self._vocab.eos

    def token_nl(self) -> int:
        """The end of a line; -1 if there is none."""
        return self._vocab.nl

    def n_vocab(self) -> int:
        """Tokens that the model knows."""
        return self._vocab.size

    def n_embd(self) -> int:
        """Numbers of a token's vector."""
        return self._host.known().model.n_embd

    def n_ctx(self) -> int:
        """Tokens that a prompt and its reply have at most."""
        return self._host.known().engine.limit

    def pooling_type(self) -> int:
        """llama.cpp's number for how embeddings are pooled. Raises InvalidRequest for a model that can't embed."""
        embeddings = self._host.known().embeddings
        assert embeddings is not None
        pooling = embeddings.plan().pooling
        return next(number for number, name in POOLINGS.items() if name == pooling)

    @staticmethod
    def logits_to_logprobs(logits: Logits | Sequence[float], axis: int = -1) -> Logits:
        """Natural logarithms of the probabilities, of the same shape."""
        given = np.asarray(logits, dtype=np.float32)
        highest = given.max(axis=axis, keepdims=True)
        shifted = given - np.where(np.isfinite(highest), highest, np.float32(0))
        with np.errstate(divide="ignore"):
            result: Logits = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return result

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """How many tokens both begin with."""
        n = 0
        for one, other in zip(a, b, strict=False):
            if one != other:
                break
            n += 1
        return n
