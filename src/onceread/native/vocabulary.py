"""Text to tokens and back, with control over which strings may become control tokens."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from onceread.native.errors import TokenizeFailed
from onceread.native.library import lib

_CONTROL_ATTRS = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN


@dataclass(frozen=True, slots=True)
class FillTokens:
    """The tokens by which a model fills a gap in a text, -1 where it has none."""

    prefix: int = -1
    suffix: int = -1
    middle: int = -1
    repo: int = -1  # begins a repository of files
    file: int = -1  # begins a file of it


class Vocabulary:
    """A model's vocabulary. Read-only and thread-safe; valid while its model is open."""

    def __init__(self, handle: Any) -> None:
        self._v = handle
        self.size: int = lib.llama_vocab_n_tokens(handle)
        self.bos: int = lib.llama_vocab_bos(handle)
        self.eos: int = lib.llama_vocab_eos(handle)
        self.eot: int = lib.llama_vocab_eot(handle)
        self.nl: int = lib.llama_vocab_nl(handle)
        self.add_bos: bool = bool(lib.llama_vocab_get_add_bos(handle))

    @property
    def handle(self) -> Any:
        """The C pointer, for samplers."""
        return self._v

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``.

        ``add_special`` adds what the model wants around a prompt (BOS, EOS).
        With ``parse_special=False`` a control token's string in the text stays
        plain text. Raises TokenizeFailed, also for text that can't be UTF-8.
        """
        if isinstance(text, str):
            try:
                data = text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise TokenizeFailed("the text holds a lone surrogate, which is not valid Unicode") from error
        else:
            data = text
        if len(data) > 0x7FFFFFF0 // 4:
            raise TokenizeFailed(f"a text of {len(data)} bytes is too long to tokenize")
        size = len(data) + 16
        for _ in range(2):
            buffer = (lib.llama_token * size)()
            n = lib.llama_tokenize(self._v, data, len(data), buffer, size, add_special, parse_special)
            if n >= 0:
                return buffer[:n]
            size = -n
        raise TokenizeFailed(f"llama.cpp could not tokenize a text of {len(data)} bytes")

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for in text; empty for control tokens."""
        return self.pieces[token]

    @cached_property
    def pieces(self) -> list[bytes]:
        """:meth:`piece` of every token, by id."""
        return [self._render(t) for t in range(self.size)]

    def _render(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(128)
        n = lib.llama_token_to_piece(self._v, token, buffer, len(buffer), 0, False)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = lib.llama_token_to_piece(self._v, token, buffer, len(buffer), 0, False)
            if n < 0:
                raise TokenizeFailed(f"llama.cpp could not render token {token}")
        return buffer.raw[:n]

    def detokenize(self, tokens: list[int]) -> bytes:
        """The bytes of a run of tokens, each as :meth:`piece` gives it."""
        pieces = self.pieces
        return b"".join([pieces[t] for t in tokens])

    def text(self, token: int) -> str:
        """The token as the vocabulary writes it, such as ``<|im_end|>``."""
        self._check(token)
        raw = lib.llama_vocab_get_text(self._v, token)
        return str(raw.decode("utf-8", errors="replace")) if raw else ""

    def is_eog(self, token: int) -> bool:
        """Does this token end a generation (EOS, end of turn, ...)?"""
        return token in self.eog_tokens

    def is_control(self, token: int) -> bool:
        return bool(self.control_mask[token])

    @cached_property
    def fill(self) -> FillTokens:
        """What fills gaps."""
        v = self._v
        return FillTokens(
            prefix=lib.llama_vocab_fim_pre(v),
            suffix=lib.llama_vocab_fim_suf(v),
            middle=lib.llama_vocab_fim_mid(v),
            repo=lib.llama_vocab_fim_rep(v),
            file=lib.llama_vocab_fim_sep(v),
        )

    def shown(self, tokens: list[int]) -> bytes:
        """As :meth:`detokenize`, with control tokens as the vocabulary writes them."""
        pieces, names = self.pieces, self._control_names
        return b"".join([pieces[t] or names.get(t, b"") for t in tokens])

    @cached_property
    def _control_names(self) -> dict[int, bytes]:
        return {token: name.encode() for name, token in self.control_tokens.items()}

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """Every token that ends a generation."""
        return frozenset(t for t in range(self.size) if lib.llama_vocab_is_eog(self._v, t))

    @cached_property
    def control_mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Shape (size,): True where the token is a control or unknown token, never text."""
        attrs = np.fromiter(
            (lib.llama_vocab_get_attr(self._v, t) for t in range(self.size)), dtype=np.int64, count=self.size
        )
        mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = (attrs & _CONTROL_ATTRS) != 0
        return mask

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """The string of every control token, with its id: what no user's text may turn into."""
        found = {self.text(int(t)): int(t) for t in np.flatnonzero(self.control_mask)}
        found.pop("", None)
        return found

    @cached_property
    def marks(self) -> dict[str, int]:
        """What grammars take for tokens and not for text: control tokens, and tags such as ``<think>``."""
        found = dict(self.control_tokens)
        attrs = (lib.llama_vocab_get_attr(self._v, t) for t in range(self.size))
        for token, attr in enumerate(attrs):
            if attr & lib.LLAMA_TOKEN_ATTR_USER_DEFINED:
                text = self.piece(token)
                if text.startswith(b"<") and text.endswith(b">"):
                    found.setdefault(text.decode(errors="replace"), token)
        return found

    def _check(self, token: int) -> None:
        if not 0 <= token < self.size:
            raise TokenizeFailed(f"token {token} is outside the vocabulary of {self.size}")
