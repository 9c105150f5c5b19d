"""How one reply is sampled: the values of a sampler chain, checked once where they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SAMPLERS = ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama.cpp's names of the samplers that a chain can have, in the order in which it has them by default."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply must be, to the last character.

    ``gbnf`` is llama.cpp's notation, with a rule ``root``; ``json_schema`` is the schema's JSON text; ``regex``
    is Rust's dialect, for the whole reply; ``lark`` is llguidance's notation, for our own grammars.
    """

    kind: Literal["gbnf", "json_schema", "regex", "lark"]
    text: str
    param: str = "grammar"  # what the client calls it
    begun: str = ""  # a part that is written already: the reply goes on from there
    after: str = ""  # what comes before it is any text up to this one, as of a model that thinks first


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one reply, in llama.cpp's terms.

    A field left at its default switches its sampler off, except for
    ``temperature``, ``top_k``, ``top_p`` and ``min_p``, whose defaults are
    llama.cpp's own. ``temperature <= 0`` is greedy. Values are not clamped here:
    the faces validate what clients send.

    Sources: typical (arXiv 2202.00666), mirostat (2007.14966), min-p (llama.cpp
    PR 3841), DRY (text-generation-webui PR 5677), XTC (PR 6335).
    """

    temperature: float = 0.8
    top_k: int = 40  # 0 = off
    top_p: float = 0.95  # 1 = off
    min_p: float = 0.05  # 0 = off
    typical_p: float = 1.0  # 1 = off
    repeat_penalty: float = 1.0  # 1 = off
    repeat_last_n: int = 64  # tokens looked back at, -1 = the whole context
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0 = off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # tokens looked back at, -1 = the whole context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0  # 0 = off
    xtc_threshold: float = 0.1
    mirostat: int = 0  # 0 = off, 1, 2
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    seed: int | None = None  # None = from the system's entropy
    constraint: Constraint | None = field(default=None, repr=False)
    order: tuple[str, ...] = SAMPLERS  # one that is not named is off; with mirostat only the penalties count
