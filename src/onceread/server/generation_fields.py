"""The parameters that both completion APIs share, with their ranges, and what they mean to the engine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.native.params import Constraint, SamplingParams
from onceread.server.body import RequestModel, StreamedRequest
from onceread.server.constraint_fields import ConstraintFields, no_nul
from onceread.server.errors import invalid
from onceread.server.session_hint import MAX_LENGTH, SAYS
from onceread.server.settings import Settings

MAX_N = 32
MAX_TOP_LOGPROBS = 20

_MAX_INT = 2**31 - 1
_MAX_LOOK_BACK = 1024 * 1024
_MAX_BIASES = 1024
_MAX_STOPS = 16
_MAX_STOP = 1000
_MAX_BREAKERS = 16  # each costs a search through the whole vocabulary
_DEFAULTS = SamplingParams()


def _stops(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop_type", "must be a string or a list of strings")
    if len(stops) > _MAX_STOPS:
        raise PydanticCustomError("too_many", "must have at most {n} strings", {"n": _MAX_STOPS})
    if not all(0 < len(stop) <= _MAX_STOP for stop in stops):
        message = "must hold strings of 1 to {n} characters"
        raise PydanticCustomError("stop_length", message, {"n": _MAX_STOP})
    return tuple(stops)


_STOP = {"type": "string", "minLength": 1, "maxLength": _MAX_STOP}
Stop = Annotated[
    tuple[str, ...] | None,
    PlainValidator(_stops),
    WithJsonSchema(
        {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": _MAX_STOPS}, {"type": "null"}]}
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LookBack = Annotated[int, Field(ge=-1, le=_MAX_LOOK_BACK)]
Breaker = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(no_nul)]


class StreamOptions(RequestModel):
    """What a stream should hold beside the reply."""

    include_usage: bool | None = Field(None, description="A last chunk with the whole request's usage.")


class GenerationFields(ConstraintFields, StreamedRequest):
    """Sampling, limits and streaming. What is left out or null has its default."""

    model: str | None = Field(None, description="Any name: the server has one model and answers with it.")
    max_tokens: int | None = Field(None, ge=0, le=_MAX_INT, description="Default: up to the context's limit.")
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = Field(None, description="Replies to one prompt.")
    stop: Stop = Field(None, description="The reply ends before any of these.")
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, description="Repeats a reply, as far as rounding goes; -1 is random.")
    user: str | None = None
    cache_salt: str | None = Field(
        None, max_length=256, description="Only requests with the same salt share what was read."
    )

    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy.")
    top_p: Share | None = None
    top_k: int | None = Field(None, ge=-1, le=_MAX_INT, description="0 or -1 switches it off.")
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    repeat_last_n: LookBack | None = Field(None, description="-1 is the whole context.")
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    dry_multiplier: float | None = Field(None, ge=0, le=100)
    dry_base: float | None = Field(None, ge=1, le=100)
    dry_allowed_length: int | None = Field(None, ge=0, le=_MAX_LOOK_BACK)
    dry_penalty_last_n: LookBack | None = Field(None, description="-1 is the whole context.")
    dry_sequence_breakers: Annotated[list[Breaker], Len(0, _MAX_BREAKERS)] | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    mirostat: int | None = Field(None, ge=0, le=2)  # a Literal would take false for 0
    mirostat_tau: float | None = Field(None, ge=0, le=100)
    mirostat_eta: float | None = Field(None, ge=0, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=_MAX_BIASES, description="By token id: what to add to its logit."
    )
    ignore_eos: bool | None = None
    prompt_cache_key: str | None = Field(None, max_length=MAX_LENGTH, description=SAYS)
    reuse_moved: bool | None = Field(
        None, description="Also reuse what was read at other positions: an approximation."
    )
    explain: bool | None = Field(
        None, description="Say where the prompt left the nearest known path of its namespace."
    )

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed with stream: true.", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, vocab_size: int) -> SamplingParams:
        """How to sample; llama.cpp's defaults where nothing is said. Raises ApiError for unknown tokens."""
        return SamplingParams(
            temperature=_or(self.temperature, _DEFAULTS.temperature),
            top_k=max(0, _or(self.top_k, _DEFAULTS.top_k)),
            top_p=_or(self.top_p, _DEFAULTS.top_p),
            min_p=_or(self.min_p, _DEFAULTS.min_p),
            typical_p=_or(self.typical_p, _DEFAULTS.typical_p),
            repeat_penalty=_or(self.repeat_penalty, _DEFAULTS.repeat_penalty),
            repeat_last_n=_or(self.repeat_last_n, _DEFAULTS.repeat_last_n),
            frequency_penalty=_or(self.frequency_penalty, _DEFAULTS.frequency_penalty),
            presence_penalty=_or(self.presence_penalty, _DEFAULTS.presence_penalty),
            dry_multiplier=_or(self.dry_multiplier, _DEFAULTS.dry_multiplier),
            dry_base=_or(self.dry_base, _DEFAULTS.dry_base),
            dry_allowed_length=_or(self.dry_allowed_length, _DEFAULTS.dry_allowed_length),
            dry_penalty_last_n=_or(self.dry_penalty_last_n, _DEFAULTS.dry_penalty_last_n),
            dry_sequence_breakers=_breakers(self.dry_sequence_breakers),
            xtc_probability=_or(self.xtc_probability, _DEFAULTS.xtc_probability),
            xtc_threshold=_or(self.xtc_threshold, _DEFAULTS.xtc_threshold),
            mirostat=_or(self.mirostat, _DEFAULTS.mirostat),
            mirostat_tau=_or(self.mirostat_tau, _DEFAULTS.mirostat_tau),
            mirostat_eta=_or(self.mirostat_eta, _DEFAULTS.mirostat_eta),
            logit_bias=self.biases(vocab_size),
            seed=_seed(self.seed),
            constraint=self._constraint_from_there(),
        )

    def biases(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        """What to add to which token's logit. Raises ApiError for unknown tokens."""
        return _biases(self.logit_bias or {}, vocab_size)

    @property
    def begun(self) -> str:
        """What of the reply is written already, by the client."""
        return ""

    def _constraint_from_there(self) -> Constraint | None:
        constraint = self.constraint
        return replace(constraint, begun=self.begun) if constraint and self.begun else constraint


def unsupported(message: str) -> PydanticCustomError:
    """What a validator raises for a parameter that exists elsewhere but not in this version."""
    # Braces would be taken for a template's.
    return PydanticCustomError("unsupported_parameter", "{says}", {"says": message})


def refuse_unless(harmless: bool, value: object) -> object:
    """``value`` if leaving it out changes nothing; else the error that it is not supported."""
    if harmless:
        return value
    raise unsupported("is not supported in this version")


def capped(max_tokens: int | None, limit: int | None) -> int | None:
    """The client's limit under the server's."""
    if max_tokens is None or limit is None:
        return limit if max_tokens is None else max_tokens
    return min(max_tokens, limit)


def moved_reuse(asked: bool | None, settings: Settings) -> bool:
    """May this request use what was read at other positions? Its own word goes before the server's."""
    return settings.reuse_moved if asked is None else asked


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _breakers(given: list[str] | None) -> tuple[str, ...]:
    return _DEFAULTS.dry_sequence_breakers if given is None else tuple(given)


def _seed(seed: int | None) -> int | None:
    if seed is None or seed == -1:
        return None
    return seed & 0xFFFFFFFF


def _biases(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, bias in given.items():
        token = int(key) if re.fullmatch("[0-9]{1,10}", key) else -1
        if not 0 <= token < vocab_size:
            shown = re.sub(r"[^\x20-\x7e]", "?", key[:40])
            message = f"logit_bias: {shown!r} is not a token id of this model (0 to {vocab_size - 1})."
            raise invalid(message, "logit_bias")
        biases[token] = bias
    return tuple(biases.items())
