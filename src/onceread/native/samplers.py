"""From logits to a token: a chain of llama.cpp's samplers, made from SamplingParams."""

from __future__ import annotations

import ctypes
import secrets
from typing import Any

import numpy as np

from onceread.native.context import Context
from onceread.native.errors import SamplerInvalid
from onceread.native.grammar import Grammar, GrammarDeadEnd
from onceread.native.library import lib
from onceread.native.params import SamplingParams
from onceread.native.vocabulary import Vocabulary

_MIN_KEEP = 1  # a sampler that leaves no candidate aborts the process
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler:
    """Samples one reply. Keeps the state that sampling needs (penalties, mirostat, random numbers, grammar)."""

    def __init__(
        self, vocab: Vocabulary, params: SamplingParams, *, n_ctx: int, ignore_eos: bool = False
    ) -> None:
        """``n_ctx``: what a look-back of -1 tokens stands for.

        Raises SamplerInvalid or GrammarInvalid; nothing is left allocated then.
        """
        self._vocab = vocab
        self._chain: Any = None
        self._grammar: Grammar | None = None
        self._candidates: np.ndarray[Any, Any] | None = None
        self._ignores_end = ignore_eos
        self._ends = sorted(vocab.eog_tokens)
        self._end = vocab.eos if vocab.eos >= 0 else min(vocab.eog_tokens, default=-1)
        # The biases, where the likeliest token is all that is asked for.
        self._greedy: dict[int, float] | None = None
        self._looking_back: list[Any] = []  # samplers of the chain that want to know the prompt's end
        self._look_back = 0
        self.seed = params.seed if params.seed is not None else secrets.randbits(32)
        chain_params = lib.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._chain = lib.llama_sampler_chain_init(chain_params)
        try:
            self._build(params, n_ctx, ignore_eos)
            if params.constraint is not None:
                self._grammar = Grammar(vocab, params.constraint)
        except BaseException:
            self.close()
            raise

    @property
    def complete(self) -> bool:
        """Does a grammar allow nothing but the end of the reply?"""
        return self._grammar is not None and self._grammar.complete

    @property
    def look_back(self) -> int:
        """How many tokens of the prompt's end :meth:`accept_prompt` wants to see."""
        return self._look_back

    def accept_prompt(self, tokens: list[int]) -> None:
        """Show the penalties what stands before the reply, oldest first."""
        for sampler in self._looking_back:
            for token in tokens:
                lib.llama_sampler_accept(sampler, token)

    def sample(self, context: Context, index: int) -> int:
        """Choose a token by the logits at a batch index and remember it. Raises GrammarDeadEnd."""
        if self._grammar is not None:
            return self._sample_by_grammar(self._grammar, context.logits(index))
        if self._greedy is not None:
            return _likeliest(context.logits(index, copy=False), self._greedy)
        return int(lib.llama_sampler_sample(self._chain, context.handle, index))

    def sample_from(self, logits: np.ndarray[Any, Any]) -> int:
        """The same by other logits than the context's: shape (vocabulary,), float32, finite or minus infinity."""
        if self._grammar is not None:
            return self._sample_by_grammar(self._grammar, logits)
        return self._choose(np.arange(self._vocab.size, dtype=np.int32), logits)

    def _sample_by_grammar(self, grammar: Grammar, logits: np.ndarray[Any, Any]) -> int:
        if grammar.complete:
            return self._end
        allowed = grammar.allowed()
        if not allowed.any():
            raise GrammarDeadEnd("the grammar allows no token here")
        if self._ignores_end:
            allowed[self._ends] = False
            if not allowed.any():  # it goes on for as long as the grammar lets it
                return self._end
        ids = np.flatnonzero(allowed)  # often a handful of a vocabulary of 150,000
        token = self._choose(ids, logits)
        if not self._vocab.is_eog(token):
            grammar.accept(token)
        return token

    def _choose(self, ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> int:
        """One of these tokens, by the chain."""
        if self._candidates is None:
            self._candidates = np.zeros(self._vocab.size, dtype=_CANDIDATE)
        candidates = self._candidates[: len(ids)]
        candidates["id"] = ids
        candidates["logit"] = logits[ids]
        candidates["p"] = 0
        array = _candidate_array(candidates)
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise GrammarDeadEnd("the samplers left no token to choose")
        token = int(array.data[array.selected].id)
        # A bias of minus infinity on all that the grammar allows.
        if array.data[array.selected].logit == -np.inf:
            raise GrammarDeadEnd("the samplers left no token that the grammar allows")
        lib.llama_sampler_accept(self._chain, token)
        return token

    def _build(self, p: SamplingParams, n_ctx: int, ignore_eos: bool) -> None:
        bias = dict(p.logit_bias)
        if ignore_eos:
            bias.update(dict.fromkeys(self._vocab.eog_tokens, float("-inf")))
        if bias:
            self._add(_logit_bias(self._vocab, bias))
        seed = self.seed & 0xFFFFFFFF
        if seed == 0xFFFFFFFF:  # llama.cpp takes this value for "choose one yourself"
            seed = 0xFFFFFFFE
        plain = p.temperature > 0 and not p.mirostat  # else what is left after the penalties decides alone
        for name in p.order:
            if plain or name in ("penalties", "dry"):
                self._add_named(name, p, n_ctx, seed)
        if p.temperature <= 0:
            self._add(lib.llama_sampler_init_greedy())
            if not self._looking_back:
                self._greedy = bias
        elif plain:
            self._add(lib.llama_sampler_init_dist(seed))
        else:
            self._add(lib.llama_sampler_init_temp(p.temperature))
            size, tau, eta = self._vocab.size, p.mirostat_tau, p.mirostat_eta
            self._add(
                lib.llama_sampler_init_mirostat(size, seed, tau, eta, 100)
                if p.mirostat == 1
                else lib.llama_sampler_init_mirostat_v2(seed, tau, eta)
            )

    def _add_named(self, name: str, p: SamplingParams, n_ctx: int, seed: int) -> None:
        match name:
            case "penalties":
                if p.repeat_last_n and (p.repeat_penalty != 1.0 or p.frequency_penalty or p.presence_penalty):
                    last_n = _look_back(p.repeat_last_n, n_ctx)
                    penalties = lib.llama_sampler_init_penalties(
                        self._vocab.size, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
                    )
                    self._add(penalties, look_back=last_n)
            case "dry":
                if p.dry_multiplier > 0 and p.dry_penalty_last_n:
                    last_n = _look_back(p.dry_penalty_last_n, n_ctx)
                    self._add(_dry(self._vocab, p, last_n), look_back=last_n)
            case "top_k":
                if p.top_k > 0:
                    self._add(lib.llama_sampler_init_top_k(p.top_k))
            case "typ_p":
                if p.typical_p < 1.0:
                    self._add(lib.llama_sampler_init_typical(p.typical_p, _MIN_KEEP))
            case "top_p":
                if p.top_p < 1.0:
                    self._add(lib.llama_sampler_init_top_p(p.top_p, _MIN_KEEP))
            case "min_p":
                if p.min_p > 0.0:
                    self._add(lib.llama_sampler_init_min_p(p.min_p, _MIN_KEEP))
            case "xtc":
                if p.xtc_probability > 0.0:
                    xtc = lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, _MIN_KEEP, seed)
                    self._add(xtc)
            case "temperature":
                self._add(lib.llama_sampler_init_temp(p.temperature))
            case _:
                raise SamplerInvalid(f"there is no sampler of the name {name}")

    def _add(self, sampler: Any, look_back: int = 0) -> None:
        if not sampler:
            raise SamplerInvalid("llama.cpp refused a sampler's parameters")
        lib.llama_sampler_chain_add(self._chain, sampler)
        if look_back:
            self._looking_back.append(sampler)
            self._look_back = max(self._look_back, look_back)

    def close(self) -> None:
        """Free the samplers. Safe to call again."""
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None
        self._grammar = None
        self._looking_back.clear()


def _likeliest(logits: np.ndarray[Any, Any], bias: dict[int, float]) -> int:
    """What the chain would choose that has but the bias, without making 150,000 candidates for it."""
    best = int(logits.argmax())
    if bias and (best in bias or max(bias.values()) > 0):
        logits = logits.copy()
        for token, value in bias.items():
            logits[token] += value
        best = int(logits.argmax())
    return best


def _look_back(n: int, n_ctx: int) -> int:
    return n_ctx if n < 0 else min(n, n_ctx)


def _candidate_array(candidates: np.ndarray[Any, Any]) -> Any:
    array: Any = lib.llama_token_data_array()
    array.data = candidates.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
    array.size = len(candidates)
    array.selected = -1
    array.sorted = False
    return array


def _logit_bias(vocab: Vocabulary, bias: dict[int, float]) -> Any:
    outside = [t for t in bias if not 0 <= t < vocab.size]
    if outside:
        raise SamplerInvalid(f"token {outside[0]} in logit_bias is outside the vocabulary of {vocab.size}")
    array: Any = (lib.llama_logit_bias * len(bias))()
    for i, (token, value) in enumerate(bias.items()):
        array[i].token = token
        array[i].bias = value
    return lib.llama_sampler_init_logit_bias(vocab.size, len(bias), array)


def _dry(vocab: Vocabulary, p: SamplingParams, last_n: int) -> Any:
    breakers = [b.encode("utf-8", errors="replace") for b in p.dry_sequence_breakers if b]
    array = (ctypes.c_char_p * max(1, len(breakers)))(*breakers)
    return lib.llama_sampler_init_dry(
        vocab.handle, p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n, array, len(breakers)
    )
