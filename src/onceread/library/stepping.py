"""The low level of `Llama`: evaluate tokens, look at logits, sample one token at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from functools import cached_property

import numpy as np

from onceread.engine.hooks import HookRaised, processed
from onceread.engine.request import Logits, LogitsProcessor, TokenArray
from onceread.engine.sequence import as_tokens
from onceread.library.grammar import LlamaGrammar
from onceread.library.hooks import StoppingCriteria, as_criterion, as_processor
from onceread.library.llama_state import LlamaState, vocabulary_name
from onceread.library.place import Place
from onceread.native.errors import GrammarInvalid
from onceread.native.grammar import GrammarDeadEnd
from onceread.native.params import SamplingParams
from onceread.native.samplers import Sampler
from onceread.server.state import Serving

_RANDOM = 0xFFFFFFFF  # llama.cpp's seed for "choose one yourself"


class Stepping:
    """One place in one text, moved token by token. Each `Llama` has one, beside all that its other methods run.

    ``eval`` and ``generate`` compute only tokens that nobody has read yet, and the last one where its logits are
    wanted again. Calls from several threads do not disturb each other, but they move the same place: who steps by
    hand in two threads wants a `Llama` for each. A generator keeps its own tokens, and puts the place behind them
    whenever it is asked for its next one.
    """

    _serving: Serving
    _namespace: str
    _lock: threading.RLock
    _placed: Place | None = None

    def _begin_stepping(
        self, *, logits_all: bool = False, last_n_tokens_size: int = 64, seed: int | None = None
    ) -> None:
        """Call once ``_serving``, ``_namespace`` and ``_lock`` are there."""
        self._logits_all = logits_all
        self._placed = None
        self.last_n_tokens_size = last_n_tokens_size
        self._seed = seed

    def _end_stepping(self) -> None:
        """Give back what is held in the engine. The state that was computed stays in the cache."""
        with self._lock:
            if self._placed is not None:
                self._placed.drop()

    @property
    def _place(self) -> Place:
        """Made when it is first needed: a model that only embeds has none."""
        with self._lock:
            if self._placed is None:
                self._placed = Place(self._serving.engine, self._namespace, logits_all=self._logits_all)
            return self._placed

    # -- where it stands ---------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """How many tokens the place is behind. A smaller number may be set, to go back."""
        return len(self._place.tokens)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        with self._lock:
            if not 0 <= n <= len(self._place.tokens):
                raise ValueError(f"n_tokens can be set to 0 to {len(self._place.tokens)} here, not to {n}")
            self._place.truncate(n)

    @property
    def input_ids(self) -> TokenArray:
        """Shape (positions,): a copy of the tokens, of which the first ``n_tokens`` count."""
        ids = np.zeros(self._place.limit, dtype=np.int32)
        tokens = self._place.tokens
        ids[: len(tokens)] = tokens
        return ids

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens before the place."""
        return deque(self._place.tokens.tolist(), maxlen=self._place.limit)

    @property
    def scores(self) -> Logits:
        """Shape (n_tokens, vocabulary): the logits behind each token. Only with ``logits_all=True``.

        A view, good until the place moves back; not to be written to.
        """
        if not self._place.logits_all:
            raise RuntimeError("scores are not kept: make the Llama with logits_all=True")
        rows = self._place.rows.view()
        rows.flags.writeable = False
        return rows

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The logits behind each token with ``logits_all=True``, else those behind the last one."""
        with self._lock:
            rows = self._place.rows.tolist()
        return deque(rows, maxlen=self._place.limit if self._place.logits_all else 1)

    # -- moving ------------------------------------------------------------

    def reset(self) -> None:
        """Begin anew, before the first token. What was read stays known."""
        with self._lock:
            self._place.truncate(0)

    def eval(self, tokens: Sequence[int]) -> None:
        """Read these tokens behind the place. Raises ContextLengthExceeded, ValueError, EngineError."""
        if not len(tokens):
            return
        with self._lock:
            self._place.read(np.concatenate([self._place.tokens, as_tokens(tokens)]))

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """A token for behind the place, which stays where it is; ``eval`` it to go on.

        ``idx``: by the logits behind the token at this position, which must be the last unless ``logits_all``.
        With a seed, the n-th token of a text is drawn alike each time. A grammar begins anew with each call.
        Raises ValueError where nothing was read yet, and what a processor raises.
        """
        params = self._params(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temp=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau, penalize_nl=penalize_nl, grammar=grammar,
            moved=self.n_tokens,
        )  # fmt: skip
        with self._lock:
            tokens = self._place.tokens.copy()
            if not len(tokens):
                raise ValueError("there is nothing to sample from: eval some tokens first")
            if idx is None or idx == len(tokens) - 1:
                logits = self._place.read(tokens)
            elif 0 <= idx < len(tokens) and self._place.logits_all:
                tokens = tokens[: idx + 1]
                logits = self._place.rows[idx].copy()
            else:
                raise ValueError(f"the logits at {idx} are not kept: make the Llama with logits_all=True")
        sampler = self._sampler(params, tokens)
        try:
            return _sampled(sampler, as_processor(logits_processor), tokens, logits)
        finally:
            sampler.close()

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Token ids behind ``tokens``, one at a time, the model's end of text among them: whoever asks goes on.

        ``reset=False``: behind the place and ``tokens``; these may then be empty. Tokens that are sent to the
        generator are read behind the one that it gave last. A token counts as read once the next one is asked
        for. Ends where a stopping criterion says so, or a grammar lets nothing follow. Nothing is computed ahead.
        Raises ContextLengthExceeded where the context is full, ValueError, EngineError, and what hooks raise.
        """
        params = self._params(
            top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, temp=temp,
            repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, tfs_z=tfs_z, mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta, mirostat_tau=mirostat_tau, penalize_nl=penalize_nl, grammar=grammar,
        )  # fmt: skip
        processor, criterion = as_processor(logits_processor), as_criterion(stopping_criteria)
        text = as_tokens(tokens)
        if not reset:
            with self._lock:
                text = np.concatenate([self._place.tokens, text])
        sampler = self._sampler(params, text)
        try:
            while True:
                with self._lock:
                    logits = self._place.read(text)
                try:
                    token = _sampled(sampler, processor, text, logits)
                except (GrammarDeadEnd, GrammarInvalid):
                    return
                if criterion is not None and criterion(text.copy(), logits):
                    return
                sent = yield token
                text = np.concatenate([text, as_tokens([token, *(sent if sent is not None else ())])])
        finally:
            sampler.close()

    # -- keeping a place ---------------------------------------------------

    def save_state(self) -> LlamaState:
        """Where it stands. See `LlamaState` for what that holds."""
        with self._lock:
            tokens = self._place.tokens.copy()
            rows = self._place.rows.copy() if self._place.logits_all else self._place.rows[:0].copy()
        name = self._vocabulary_name
        return LlamaState(tokens, rows, len(tokens), name, len(name), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Stand there again. Nothing is computed before logits are wanted, and then only what the cache lacks.

        Raises ValueError for a state of another vocabulary, ContextLengthExceeded where it does not fit.
        """
        if state.llama_state != self._vocabulary_name:
            raise ValueError("this state was saved by a model with another vocabulary")
        with self._lock:
            if state.n_tokens:
                self._place.take(as_tokens(state.input_ids)[: state.n_tokens], state.scores)
            else:
                self._place.truncate(0)
            self._seed = state.seed

    @cached_property
    def _vocabulary_name(self) -> bytes:
        return vocabulary_name(self._serving.model.vocab)

    # -- sampling ----------------------------------------------------------

    def _params(
        self,
        *,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        temp: float,
        repeat_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        tfs_z: float,
        mirostat_mode: int,
        mirostat_eta: float,
        mirostat_tau: float,
        penalize_nl: bool,
        grammar: LlamaGrammar | None,
        moved: int = 0,
    ) -> SamplingParams:
        if tfs_z != 1.0:
            raise ValueError("tfs_z is gone from llama.cpp: use min_p or top_p instead")
        if not penalize_nl:
            raise ValueError("penalize_nl=False is gone from llama.cpp: raise the newline's logit instead")
        if mirostat_mode not in (0, 1, 2):
            raise ValueError(f"mirostat_mode must be 0, 1 or 2, not {mirostat_mode}")
        if temp < 0:  # what the model says, as it says it
            temp, top_k, top_p, min_p, typical_p, mirostat_mode = 1.0, 0, 1.0, 0.0, 1.0, 0
        seed = self._seed if self._seed is not None and self._seed & _RANDOM != _RANDOM else None
        return SamplingParams(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            repeat_last_n=self.last_n_tokens_size,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            seed=None if seed is None else (seed + moved) & _RANDOM,
            constraint=grammar.constraint if grammar is not None else None,
        )

    def _sampler(self, params: SamplingParams, text: TokenArray) -> Sampler:
        engine = self._serving.engine
        sampler = Sampler(engine.model.vocab, params, n_ctx=engine.n_ctx)
        if sampler.look_back:
            sampler.accept_prompt(text[-sampler.look_back :].tolist())
        return sampler


def _sampled(sampler: Sampler, processor: LogitsProcessor | None, text: TokenArray, logits: Logits) -> int:
    if processor is not None:
        try:
            logits = processed(processor, text, logits)
        except HookRaised as raised:
            raise raised.error from None
    return sampler.sample_from(logits)
