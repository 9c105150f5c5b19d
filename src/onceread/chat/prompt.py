"""From rendered conversations and raw text to the token ids that the engine reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from onceread.chat.errors import PromptEmpty
from onceread.chat.guard import ControlStrings
from onceread.chat.rendered import Control, Rendered

if TYPE_CHECKING:
    from onceread.native.vocabulary import Vocabulary

_BYTES_PER_TOKEN = 8  # a tuple's slot; small ints are shared, large ones few
_BYTES_PER_ENTRY = 256


class PromptTokenizer:
    """Makes prompts. Remembers the tokens of texts it has seen: a chat repeats its earlier messages."""

    def __init__(self, vocab: Vocabulary, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._vocab = vocab
        self._control = ControlStrings(vocab.control_tokens)
        self._limit = cache_bytes
        self._used = 0
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def chat(self, rendered: Rendered) -> tuple[int, ...]:
        """The tokens of a conversation: control tokens where the template wrote them, text everywhere else.

        BOS is added if the model wants it and the template did not write it. Raises PromptEmpty.
        """
        tokens: list[int] = []
        for segment in rendered.segments:
            if isinstance(segment, Control):
                tokens.append(segment.token)
            else:
                tokens.extend(self._text(segment.text))
        vocab = self._vocab
        if vocab.add_bos and vocab.bos >= 0 and tokens[:1] != [vocab.bos]:
            tokens.insert(0, vocab.bos)
        if not tokens:
            raise PromptEmpty("the chat template made an empty prompt of these messages")
        return tuple(tokens)

    def raw(self, text: str) -> tuple[int, ...]:
        """The tokens of a raw prompt, in which control tokens may be written out.

        What the model wants around a text, such as BOS, is added. Raises PromptEmpty.
        """
        vocab = self._vocab
        tokens = self.written(text)
        around = vocab.tokenize("", add_special=True, parse_special=False)
        begins = vocab.add_bos or len(around) > 1  # BERT's have both, and no BOS by that name
        begin, end = (around[:1], around[1:]) if begins else ([], around)
        if tokens[:1] != begin:
            tokens = begin + tokens
        if not tokens:
            if vocab.bos < 0:
                raise PromptEmpty("the prompt is empty, and this model has no token to begin a text with")
            tokens = [vocab.bos]
        return (*tokens, *end)

    def written(self, text: str) -> list[int]:
        """The tokens of ``text``, in which control tokens may be written out, and nothing around it."""
        tokens: list[int] = []
        # llama.cpp can look for control strings itself, but takes a time that grows with the square of
        # their number: a megabyte of them would keep a core busy for a minute.
        for i, piece in enumerate(self._control.split(text)):
            if i % 2:
                tokens.append(self._control.tokens[piece])
            elif piece:
                tokens += self._vocab.tokenize(piece, add_special=False, parse_special=False)
        return tokens

    def _text(self, text: str) -> tuple[int, ...]:
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        tokens = tuple(self._vocab.tokenize(text, add_special=False, parse_special=False))
        with self._lock:
            if text not in self._known:
                self._known[text] = tokens
                self._used += _size(text, tokens)
            while self._used > self._limit:
                self._used -= _size(*self._known.popitem(last=False))
        return tokens


def _size(text: str, tokens: tuple[int, ...]) -> int:
    return _BYTES_PER_ENTRY + len(text) * (1 if text.isascii() else 4) + _BYTES_PER_TOKEN * len(tokens)
