"""The bodies of llama-server's completions: what they take and what they give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from onceread.native.params import SAMPLERS
from onceread.server.body import RequestModel
from onceread.server.generation_fields import MAX_N, GenerationFields, refuse_unless
from onceread.server.llama_prompts import LlamaPrompts
from onceread.server.llama_samplers import Biases, Samplers, sampler_order
from onceread.server.usage import Timings

MAX_PROBS = 128
_MAX_INT = 2**31 - 1
_MAX_WORDS = 128
_MAX_WORD = 1000


def _words(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PydanticCustomError("stop_type", "must be a string or a list of strings")
    words = [word for word in words if word]  # clients send empty ones for none
    if len(words) > _MAX_WORDS or any(len(word) > _MAX_WORD for word in words):
        message = "must have at most {n} strings of at most {length} characters"
        raise PydanticCustomError("too_many", message, {"n": _MAX_WORDS, "length": _MAX_WORD})
    return tuple(words)


_WORD = {"type": "string", "maxLength": _MAX_WORD}
Words = Annotated[
    tuple[str, ...] | None,
    PlainValidator(_words),
    WithJsonSchema(
        {"anyOf": [_WORD, {"type": "array", "items": _WORD, "maxItems": _MAX_WORDS}, {"type": "null"}]}
    ),
]
Number = int | float
Limit = Annotated[int, Field(ge=-1, le=_MAX_INT)]


class LlamaFields(GenerationFields):
    """What ``/completion`` and ``/infill`` share. Fields that mean the same everywhere are inherited."""

    n_predict: Limit | None = Field(
        None, description="-1: up to the context's limit; 0 only reads the prompt."
    )
    max_tokens: Limit | None = Field(None, description="Another name of n_predict.")
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_N)] | None = Field(None, description="Another name of n.")
    temperature: float | None = Field(None, ge=-100, le=100, description="0 and less is greedy.")
    stop: Words = None
    logit_bias: Biases = Field(  # type: ignore[assignment]
        None, description="[[token id or text, bias or false], ...], or an object."
    )
    samplers: Samplers = Field(
        None, description="Which, and in which order; one that is not named is off. `[]` is none."
    )
    n_probs: int | None = Field(
        None, ge=0, le=MAX_PROBS, description="Alternatives to tell of at each token."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_PROBS)] | bool | None = Field(
        None, description="Another name of n_probs."
    )
    return_tokens: bool | None = Field(None, description="Fill `tokens` with the ids of what was written.")
    response_fields: Annotated[list[str], Len(0, 64)] | None = Field(
        None, description="Only these; `a/b` is the field b of a, under the name `a/b`."
    )
    n_indent: int | None = Field(
        None, ge=0, le=1000, description="End before a line that begins with fewer blanks."
    )
    t_max_predict_ms: int | None = Field(
        None, ge=-1, le=_MAX_INT, description="Once it took so long, end at the next line break."
    )

    # Accepted, and nothing follows from them: docs/api-llama.md says why.
    cache_prompt: bool | None = None
    id_slot: Limit | None = None
    n_keep: Limit | None = None
    n_discard: Annotated[int, Field(ge=0, le=_MAX_INT)] | None = None
    n_cache_reuse: Annotated[int, Field(ge=0, le=_MAX_INT)] | None = None
    t_max_prompt_ms: Limit | None = None
    dynatemp_exponent: float | None = None

    # Refused where they would change something.
    dynatemp_range: Any = Field(None, json_schema_extra={"enum": [0, None]})
    top_n_sigma: Any = Field(None, json_schema_extra={"type": ["number", "null"], "maximum": 0})
    adaptive_target: Any = Field(None, json_schema_extra={"type": ["number", "null"], "exclusiveMaximum": 0})
    min_keep: Any = Field(None, json_schema_extra={"enum": [0, 1, None]})
    post_sampling_probs: Any = Field(None, json_schema_extra={"enum": [False, None]})
    lora: Any = Field(None, json_schema_extra={"type": ["array", "null"], "maxItems": 0})

    @field_validator("dynatemp_range")
    @classmethod
    def _no_dynamic_temperature(cls, value: object) -> object:
        return refuse_unless(value is None or (_number(value) and value == 0), value)

    @field_validator("top_n_sigma")
    @classmethod
    def _no_sigma(cls, value: object) -> object:
        return refuse_unless(
            value is None or (isinstance(value, Number) and _number(value) and value <= 0), value
        )

    @field_validator("adaptive_target")
    @classmethod
    def _no_target(cls, value: object) -> object:
        return refuse_unless(
            value is None or (isinstance(value, Number) and _number(value) and value < 0), value
        )

    @field_validator("min_keep")
    @classmethod
    def _keeps_one(cls, value: object) -> object:
        return refuse_unless(value is None or (_number(value) and value in (0, 1)), value)

    @field_validator("post_sampling_probs")
    @classmethod
    def _before_sampling(cls, value: object) -> object:
        return refuse_unless(value is None or value is False, value)

    @field_validator("lora")
    @classmethod
    def _no_lora(cls, value: object) -> object:
        return refuse_unless(value is None or value == [], value)

    @property
    def replies(self) -> int:
        return self.n_cmpl or self.n or 1

    @property
    def token_limit(self) -> int | None:
        """Tokens of a reply; None is up to the context's limit."""
        limit = self.max_tokens if self.n_predict is None else self.n_predict
        return None if limit == -1 else limit

    @property
    def alternatives(self) -> int:
        """How many alternatives to tell of at each token; 0 is not even of the token itself."""
        return int(self.logprobs or 0) if self.n_probs is None else self.n_probs

    @property
    def order(self) -> tuple[str, ...]:
        """The samplers, in their order."""
        return SAMPLERS if self.samplers is None else sampler_order(self.samplers)[0]

    @property
    def not_honoured(self) -> set[str]:
        unknown = sampler_order(self.samplers or ())[1]
        return super().not_honoured | {f"samplers.{name}" for name in unknown}

    def biases(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        return ()  # they may be given by text: see llama_samplers.token_biases


class LlamaCompletionRequest(LlamaFields):
    """One or more raw prompts to continue. In their text control tokens may be written out."""

    prompt: LlamaPrompts


class ExtraFile(RequestModel):
    """Something that stands before the text with the gap."""

    text: str
    filename: str | None = None


class InfillRequest(LlamaFields):
    """A text with a gap to fill."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Len(0, 1024)] | None = None
    prompt: str | None = Field(None, description="What the gap begins with, such as the line's first half.")


def _number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


class LlamaCompletion(BaseModel):
    """A finished reply, or what ``response_fields`` left of it."""

    model_config = ConfigDict(extra="allow")

    index: int | None = None  # prompt * n + reply
    content: str | None = None
    tokens: list[int] | None = None  # with return_tokens
    id_slot: int | None = None
    stop: bool | None = None
    model: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None  # of the prompt, those from the cache included
    tokens_cached: int | None = None  # of them those that were not computed
    generation_settings: dict[str, Any] | None = None
    prompt: str | None = None
    has_new_line: bool | None = None
    truncated: bool | None = None  # the context's limit ended it
    stop_type: Literal["none", "eos", "limit", "word"] | None = None
    stopping_word: str | None = None
    timings: Timings | None = None
    completion_probabilities: list[dict[str, Any]] | None = None  # with n_probs
