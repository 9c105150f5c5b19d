"""Replies that follow a grammar: GBNF, enforced by llguidance.

llama.cpp's own grammar sampler is not used: its time grows exponentially with the ways in which a grammar can
match the same text, inside a call that nothing can stop, and its parser overflows the stack. llguidance
(github.com/guidance-ai/llguidance) has limits on its work for each token and reports when they are reached.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.llamacpp import lltokenizer_from_vocab
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from onceread.native.errors import GrammarInvalid
from onceread.native.vocabulary import Vocabulary

_MAX_BYTES = 64 * 1024
# Both parsers go a step deeper for each parenthesis, and for each rule that refers to another.
_MAX_NESTING = 1000
_NOT_CODE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*')  # strings, classes, comments

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class GrammarDeadEnd(Exception):
    """No token of the vocabulary can continue what the grammar has accepted so far."""


class Grammar:
    """One reply's place in its grammar."""

    def __init__(self, vocab: Vocabulary, gbnf: str) -> None:
        """``gbnf`` has a rule ``root``. Raises GrammarInvalid for what can't be enforced."""
        self._vocab = vocab
        self._matcher = LLMatcher(_tokenizer(vocab), _to_lark(gbnf), log_level=0)
        if self._matcher.is_error():
            raise GrammarInvalid(f"the grammar can't be enforced: {_first_line(self._matcher.get_error())}")
        self._bits = allocate_token_bitmask(1, vocab.size)
        self.allowed()  # limits that it would break at once are its fault, not the reply's

    @property
    def complete(self) -> bool:
        """Is nothing but the end allowed?"""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> Mask:
        """Shape (vocabulary,): True where a token can come next, the end of the reply included."""
        fill_next_token_bitmask(self._matcher, self._bits)
        if self._matcher.is_error():
            raise GrammarInvalid(f"the grammar can't be enforced: {_first_line(self._matcher.get_error())}")
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")
        mask: Mask = bits[: self._vocab.size].astype(np.bool_)
        return mask

    def accept(self, token: int) -> None:
        """Go on by a token that :meth:`allowed` allows."""
        if not self._matcher.consume_token(token):
            raise GrammarDeadEnd(_first_line(self._matcher.get_error()))


def _to_lark(gbnf: str) -> str:
    if len(gbnf.encode("utf-8", errors="replace")) > _MAX_BYTES:
        raise GrammarInvalid(f"the grammar is longer than {_MAX_BYTES} bytes")
    code = re.sub(_NOT_CODE, "", gbnf)
    if code.count("(") + code.count("::=") > _MAX_NESTING:
        raise GrammarInvalid(f"the grammar has more than {_MAX_NESTING} rules and parentheses")
    try:
        return gbnf_to_lark(gbnf)
    except RecursionError:
        raise GrammarInvalid("the grammar is nested too deeply") from None
    except Exception as error:  # it raises bare exceptions for what it can't read
        raise GrammarInvalid(f"the grammar can't be read: {_first_line(str(error))}") from error


def _tokenizer(vocab: Vocabulary) -> LLTokenizer:
    # Made once for a vocabulary: it takes a quarter of a second.
    made = vocab.__dict__.get("_llguidance")
    if made is None:
        ends = sorted(vocab.eog_tokens, key=lambda token: (token != vocab.eos, token))
        if not ends:
            raise GrammarInvalid("this model has no token that ends a reply, which a grammar needs")
        with warnings.catch_warnings():  # it asks the binding in a way of old, once for each token
            warnings.simplefilter("ignore", DeprecationWarning)
            made = lltokenizer_from_vocab(vocab.handle, eos_token=ends)
        vocab.__dict__["_llguidance"] = made
    return made


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
