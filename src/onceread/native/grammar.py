"""Replies that follow a grammar, a JSON schema or a pattern, enforced by llguidance.

llama.cpp's own grammar sampler is not used: its time grows exponentially with the ways in which a grammar can
match the same text, inside a call that nothing can stop, and its parser overflows the stack. llguidance
(github.com/guidance-ai/llguidance) has limits on its work for each token and reports when they are reached.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.llamacpp import lltokenizer_from_vocab
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from onceread.native.errors import BegunOtherwise, GrammarInvalid
from onceread.native.json_schema import MAX_BYTES, prepared
from onceread.native.params import Constraint
from onceread.native.patterns import check_length
from onceread.native.vocabulary import Vocabulary

# Both parsers go a step deeper for each parenthesis, and for each rule that refers to another.
_MAX_NESTING = 1000
_NOT_CODE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*')  # strings, classes, comments

_NAMES = {
    "gbnf": "the grammar",
    "lark": "the tool call",
    "json_schema": "the JSON schema",
    "regex": "the pattern",
}
_JSON: Any = {
    "lenient": False,  # what it can't enforce is an error
    "coerce_one_of": False,
    # Whitespace as people and models write it. Without an end to it a small model may never come to one.
    "whitespace_pattern": r" |\n{1,2}[ \t]{0,20}",
}

_COMPACT: Any = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

_making = threading.Lock()

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class GrammarDeadEnd(Exception):
    """No token of the vocabulary can continue what the grammar has accepted so far."""


class Grammar:
    """One reply's place in what it must be."""

    def __init__(self, vocab: Vocabulary, constraint: Constraint) -> None:
        """Raises GrammarInvalid for what can't be enforced, BegunOtherwise for what can't be gone on with."""
        self._vocab = vocab
        self._what = _NAMES[constraint.kind]
        self._bits = allocate_token_bitmask(1, vocab.size)
        made: tuple[Constraint, LLMatcher] | None = vocab.__dict__.get("_llguidance_last")
        if made is not None and made[0] is constraint:  # another reply to the same request
            self._matcher = made[1].deep_copy()
            return
        self._matcher = LLMatcher(_tokenizer(vocab), _compiled(constraint, vocab), log_level=0)
        self._check()
        self.allowed()  # limits that it would break at once are its fault, not the reply's
        if constraint.begun:
            self._go_on_from(constraint.begun)
        vocab.__dict__["_llguidance_last"] = (constraint, self._matcher.deep_copy())

    @property
    def complete(self) -> bool:
        """Is nothing but the end allowed?"""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> Mask:
        """Shape (vocabulary,): True where a token can come next, the end of the reply included."""
        fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")
        mask: Mask = bits[: self._vocab.size].astype(np.bool_)
        return mask

    def accept(self, token: int) -> None:
        """Go on by a token that :meth:`allowed` allows."""
        if not self._matcher.consume_token(token):
            raise GrammarDeadEnd(_reason(self._matcher.get_error()))

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarInvalid(f"{self._what} can't be enforced: {_reason(self._matcher.get_error())}")

    def _go_on_from(self, begun: str) -> None:
        # Not by the model's own tokenizer, which may put a space before the text.
        tokens = _tokenizer(self._vocab).greedy_tokenize(begun)
        fitting = self._matcher.validate_tokens(tokens)
        if self._vocab.detokenize(tokens) != begun.encode() or fitting < len(tokens):
            good = self._vocab.detokenize(tokens[:fitting]).decode(errors="ignore")
            raise BegunOtherwise(
                f"{self._what} does not allow the message to continue, after its first {len(good)} characters"
            )
        if not self._matcher.consume_tokens(tokens):
            self._check()


@lru_cache(maxsize=256)
def schema_in_lark(text: str, *, compact: bool = False) -> str:
    """A JSON schema as what stands behind a Lark rule's colon. Raises GrammarInvalid for what can't be enforced.

    ``compact``: white space as ``json.dumps`` has it, and nowhere else.
    """
    schema = {**prepared(text), "x-guidance": _COMPACT if compact else _JSON}
    written = f"%json {json.dumps(schema)}"
    wrong = LLMatcher.validate_grammar(f"start: body\nbody: {written}")
    if wrong:
        raise GrammarInvalid(f"{_NAMES['json_schema']} can't be enforced: {_reason(wrong)}")
    return written


def check(constraint: Constraint) -> None:
    """Raise GrammarInvalid for what can't be read, without a model."""
    wrong = LLMatcher.validate_grammar(_plain(constraint))
    if wrong:
        raise GrammarInvalid(f"{_NAMES[constraint.kind]} can't be enforced: {_reason(wrong)}")


def _compiled(constraint: Constraint, vocab: Vocabulary) -> str:
    """The constraint in llguidance's terms."""
    return _behind(constraint, vocab) if constraint.after else _plain(constraint)


def _plain(constraint: Constraint) -> str:
    match constraint.kind:
        case "lark":
            return constraint.text
        case "gbnf":
            return _to_lark(constraint.text)
        case "json_schema":
            return str(LLMatcher.grammar_from_json_schema(prepared(constraint.text), overrides=_JSON))
        case "regex":
            return str(LLMatcher.grammar_from_regex(_checked(constraint.text)))


def _behind(constraint: Constraint, vocab: Vocabulary) -> str:
    """The constraint with any text before it, up to what it comes after."""
    mark = vocab.marks.get(constraint.after)
    if mark is None:
        before = f"start: before space body\nbefore[suffix={json.dumps(constraint.after)}]: /(.|\\n)*/"
    else:
        before = f"start: before <[{mark}]> space body\nbefore: /(.|\\n)*/"
    match constraint.kind:
        case "json_schema":
            body = f"body: {schema_in_lark(constraint.text)}"
        case "regex":
            body = "body: /" + re.sub(r"\\.|/", _escaped_slash, _checked(constraint.text), flags=re.S) + "/"
        case _:
            lark = constraint.text if constraint.kind == "lark" else _to_lark(constraint.text)
            body, found = re.subn(r"^start:", "body:", lark, count=1, flags=re.M)
            assert found
    return f"{before}\nspace: /\\n{{0,2}}/\n{body}\n"


def _escaped_slash(found: re.Match[str]) -> str:
    return "\\/" if found[0] == "/" else found[0]


def _checked(pattern: str) -> str:
    if len(pattern.encode("utf-8", errors="replace")) > MAX_BYTES:
        raise GrammarInvalid(f"the pattern is longer than {MAX_BYTES} bytes")
    check_length(pattern)
    return pattern


def _to_lark(gbnf: str) -> str:
    if len(gbnf.encode("utf-8", errors="replace")) > MAX_BYTES:
        raise GrammarInvalid(f"the grammar is longer than {MAX_BYTES} bytes")
    code = re.sub(_NOT_CODE, "", gbnf)
    if code.count("(") + code.count("::=") > _MAX_NESTING:
        raise GrammarInvalid(f"the grammar has more than {_MAX_NESTING} rules and parentheses")
    try:
        return gbnf_to_lark(gbnf)
    except RecursionError:
        raise GrammarInvalid("the grammar is nested too deeply") from None
    except Exception as error:  # it raises bare exceptions for what it can't read
        raise GrammarInvalid(f"the grammar can't be read: {_reason(str(error))}") from error


def _tokenizer(vocab: Vocabulary) -> LLTokenizer:
    # Made once for a vocabulary: it takes a quarter of a second.
    with _making:
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


def _reason(error: str) -> str:
    """What llguidance means, as one line without its way of counting."""
    if "NoExtension" in error:
        return "nothing satisfies it"
    lines = [line.strip() for line in error.strip().splitlines()] or [""]
    said = next((line for line in lines if line.startswith("error:")), lines[0])
    said = re.sub(r"^at \d+\(\d+\): ", "", said.removeprefix("error:"))
    return said.strip().partition(" Enable ")[0][:200]  # its switches are not the client's
