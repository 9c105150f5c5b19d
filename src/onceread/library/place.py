"""Where a `Llama` stands in its text: tokens that were read, the logits behind them, and how to read on."""

from __future__ import annotations

import numpy as np

from onceread.engine.engine import Engine
from onceread.engine.errors import ContextLengthExceeded, ShuttingDown
from onceread.engine.request import DoneEvent, Logits, LogitsEvent, Request, RequestHandle, TokenArray
from onceread.engine.sequence import common_prefix
from onceread.library.errors import Closed


class Place:
    """Tokens from position 0 on, as one thread at a time has them read.

    Holds tokens and logits only. Their state is the engine's: what it knows of them is never evaluated again, in
    whatever order places are gone to.
    """

    def __init__(self, engine: Engine, namespace: str, *, logits_all: bool = False) -> None:
        """``logits_all``: keep the logits behind every token, which are tokens x vocabulary x 4 bytes."""
        self._engine = engine
        self._namespace = namespace
        self._vocabulary = engine.model.vocab.size
        self.limit = engine.limit  # positions
        self.logits_all = logits_all
        self._ids = np.zeros(self.limit, dtype=np.int32)
        self._n = 0
        self._cursor: RequestHandle | None = None  # open in the engine, at the end of the tokens
        # Of all tokens, up to ``_known``; else of the token before ``_known`` alone, unless that is 0.
        self._rows = np.zeros((self.limit if logits_all else 1, self._vocabulary), dtype=np.float32)
        self._known = 0
        self._evaluated = 0  # by cursors that are closed

    @property
    def tokens(self) -> TokenArray:
        """A view of what was read."""
        return self._ids[: self._n]

    @property
    def evaluated(self) -> int:
        """Tokens that went through llama_decode for this place, all in all."""
        usage = self._cursor.prompt_usage if self._cursor is not None else None
        return self._evaluated + (usage.evaluated_tokens if usage is not None else 0)

    @property
    def rows(self) -> Logits:
        """Shape (n, vocabulary): the logits behind each token if all are kept; else those of the last, or none."""
        if self.logits_all:
            return self._rows[: min(self._n, self._known)]
        return self._rows[: int(0 < self._known == self._n)]

    def read(self, tokens: TokenArray) -> Logits:
        """Stand behind exactly these tokens, at least one: the logits there, shape (vocabulary,), a copy.

        Evaluates what nobody has read yet, and the last token if the logits behind it are not at hand. Raises
        ContextLengthExceeded, ValueError, and whatever ended the reading; then it stands where the old tokens and
        the new ones part.
        """
        n = len(tokens)
        self._check(tokens)
        common = common_prefix(self.tokens, tokens)
        extends = common == self._n < n
        if self._has_logits(n, common):
            self.truncate(n)
            return self._last()
        self._known = min(self._known, common) if self.logits_all else 0
        every_from = min(self._known, n - 1)
        if self._cursor is not None and extends and (not self.logits_all or self._known == common):
            self._cursor.go_on(tokens[common:].tolist(), every=self.logits_all)
        else:
            self.drop()
            request = Request(
                tuple(tokens.tolist()),
                max_tokens=0,
                namespace=self._namespace,
                alignable=False,
                logits_from=every_from if self.logits_all else n - 1,
                cursor=True,
            )
            try:
                self._cursor = self._engine.submit(request)
            except ShuttingDown:
                raise Closed from None
        self._n = common
        try:
            self._await(self._cursor, n)
        except BaseException:
            self.drop()
            raise
        self._ids[common:n] = tokens[common:]
        self._n = self._known = n
        return self._last()

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens."""
        assert 0 <= n <= self._n
        if n < self._n:
            self.drop()
            self._n = n
            self._known = min(self._known, n) if self.logits_all else 0

    def take(self, tokens: TokenArray, rows: Logits) -> None:
        """Stand behind these tokens without reading them now. ``rows``: what is known of the logits behind them."""
        self._check(tokens)
        self.drop()
        n = self._n = len(tokens)
        self._ids[:n] = tokens
        self._known = 0
        if self.logits_all:
            self._known = min(n, len(rows))
            self._rows[: self._known] = rows[: self._known]

    def drop(self) -> None:
        """Close what is open in the engine, which keeps the state. The tokens stay."""
        cursor, self._cursor = self._cursor, None
        if cursor is None:
            return
        cursor.cancel()
        if self._engine.on_own_thread:  # a garbage collection, at any time: nothing may be waited for
            return
        for event in cursor:
            if isinstance(event, DoneEvent):
                self._evaluated += event.usage.evaluated_tokens

    def _has_logits(self, n: int, common: int) -> bool:
        if common != n:
            return False
        return self._known >= n if self.logits_all else self._known == n == self._n

    def _last(self) -> Logits:
        row: Logits = self._rows[self._n - 1 if self.logits_all else 0].copy()
        return row

    def _check(self, tokens: TokenArray) -> None:
        if not len(tokens):
            raise ValueError("there is no token to read")
        if len(tokens) > self.limit:
            raise ContextLengthExceeded(len(tokens), self.limit)
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise ValueError(f"a token id is outside [0, {self._vocabulary})")

    def _await(self, cursor: RequestHandle, n: int) -> None:
        """Take the logits as they come, up to those behind token ``n - 1``."""
        while True:
            event = cursor.get()
            if isinstance(event, DoneEvent):
                self._cursor = None
                self._evaluated += event.usage.evaluated_tokens
                raise event.error or RuntimeError("the engine ended a reading that was not over")
            if isinstance(event, LogitsEvent):
                end = event.start + len(event.rows)
                if self.logits_all:
                    self._rows[event.start : end] = event.rows
                elif end == n:
                    self._rows[0] = event.rows[-1]
                if end == n:
                    return
