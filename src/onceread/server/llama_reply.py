"""Replies in llama-server's words, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onceread.engine.request import DoneEvent, FinishReason, TextEvent, TokenLogprob
from onceread.engine.request import Request as EngineRequest
from onceread.native.params import SamplingParams
from onceread.server.explain import explain_field
from onceread.server.llama_limits import Told
from onceread.server.llama_samplers import shown_biases
from onceread.server.llama_schemas import LlamaFields
from onceread.server.logprobs import TokenNames, chat_logprobs
from onceread.server.state import Serving
from onceread.server.usage import approximate_field, timings

NO_SLOT = -1
ANY_SEED = 2**32 - 1  # llama-server's seed for "any"


class LlamaReplies:
    """What becomes of the engine's events."""

    def __init__(self, body: LlamaFields, serving: Serving) -> None:
        self._body = body
        self._serving = serving
        self._names = TokenNames(serving.model.vocab)

    def chunk(self, prompt: int, event: TextEvent) -> dict[str, Any]:
        """A part of a stream."""
        return {
            "index": prompt * self._body.replies + event.index,
            "content": event.text,
            "tokens": self._ids(event.logprobs),
            "stop": False,
            "id_slot": NO_SLOT,
            "tokens_predicted": event.tokens,
            **self._probabilities(event.logprobs),
        }

    def final(
        self,
        prompt: int,
        index: int,
        request: EngineRequest,
        reason: FinishReason,
        told: Told,
        done: DoneEvent,
        *,
        content: str = "",
        logprobs: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        """The end of a reply, and all of it where it was not streamed."""
        usage = done.usage
        predicted = usage.completion_tokens if request.n == 1 else told.tokens
        full = usage.prompt_tokens + predicted >= self._serving.engine.limit
        stop_type = "word" if told.stop_string is not None else "eos" if reason == "stop" else "limit"
        said = {
            "index": prompt * self._body.replies + index,
            "content": content,
            "tokens": self._ids(logprobs),
            "id_slot": NO_SLOT,
            "stop": True,
            "model": self._serving.name,
            "tokens_predicted": predicted,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": self._settings(request),
            "prompt": self._serving.model.vocab.shown(list(request.prompt)).decode(errors="replace"),
            "has_new_line": told.has_new_line,
            "truncated": reason == "length" and full,
            "stop_type": stop_type,
            "stopping_word": told.stop_string or "",
            "timings": timings([usage]).model_dump(),
            **approximate_field([usage]),
            **explain_field(self._body.explain, [done.explanation]),
            **self._probabilities(logprobs),
        }
        return said if self._body.response_fields is None else picked(said, self._body.response_fields)

    def _ids(self, logprobs: Iterable[TokenLogprob]) -> list[int]:
        return [entry.token for entry in logprobs] if self._body.return_tokens else []

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if not self._body.alternatives or not logprobs:
            return {}
        shown = chat_logprobs(logprobs, self._names)
        for entry, told in zip(logprobs, shown, strict=True):
            told["id"] = entry.token
            for (token, _, _), top in zip(entry.top, told["top_logprobs"], strict=True):
                top["id"] = token
        return {"completion_probabilities": shown}

    def _settings(self, request: EngineRequest) -> dict[str, Any]:
        body = self._body
        return {
            **generation_settings(request.sampling),
            "n_predict": -1 if request.max_tokens is None else request.max_tokens,
            "max_tokens": -1 if request.max_tokens is None else request.max_tokens,
            "stop": list(request.stop),
            "ignore_eos": request.ignore_eos,
            "stream": bool(body.stream),
            "n_probs": body.alternatives,
            "n_ctx": self._serving.engine.limit,
            "model": self._serving.name,
        }


def generation_settings(sampling: SamplingParams) -> dict[str, Any]:
    """How a reply is sampled, by llama-server's names; with nothing else said, the rest of its defaults."""
    grammar = sampling.constraint
    return {
        "seed": ANY_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "stop": [],
        "max_tokens": -1,
        "n_predict": -1,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": False,
        "stream": False,
        "logit_bias": shown_biases(sampling.logit_bias),
        "n_probs": 0,
        "min_keep": 1,
        "grammar": grammar.text if grammar is not None and grammar.kind == "gbnf" else "",
        "samplers": list(sampling.order),
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [],
    }


def picked(said: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The fields that ``paths`` name, each under its whole path; what is not there is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = said
        for step in path.split("/"):
            if not isinstance(value, Mapping) or step not in value:
                break
            value = value[step]
        else:
            found[path] = value
    return found
