"""Two parameters of llama-server in its own forms: which samplers, in which order, and biases by text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from onceread.native.params import SAMPLERS
from onceread.server.llama_prompts import checked
from onceread.server.state import Serving

_MAX_SAMPLERS = 32
_MAX_BIASES = 4096
_OTHER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature"}
_LETTERS = dict(zip("edkypmxt", SAMPLERS, strict=True))
# They do nothing without parameters that are refused here, so that it can't be missed that they are not there.
_OFF = frozenset({"top_n_sigma", "top-n-sigma", "adaptive_p", "s", "a"})


def _names(value: object) -> list[str] | None:
    if value is None:
        return None
    names = list(value) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PydanticCustomError("samplers_type", "must be a list of names, or a string of their letters")
    if len(names) > _MAX_SAMPLERS:
        raise PydanticCustomError("too_many", "must name at most {n} samplers", {"n": _MAX_SAMPLERS})
    return names


_NAMES = {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_SAMPLERS}
Samplers = Annotated[
    list[str] | None,
    PlainValidator(_names),
    WithJsonSchema({"anyOf": [_NAMES, {"type": "string", "maxLength": _MAX_SAMPLERS}, {"type": "null"}]}),
]


def sampler_order(names: Iterable[str]) -> tuple[tuple[str, ...], set[str]]:
    """The samplers in the order that the client wants, each once; and the names of those that are not known."""
    order: dict[str, None] = {}
    unknown = set()
    for given in names:
        name = _LETTERS.get(given) or _OTHER_NAMES.get(given, given)
        if name in SAMPLERS:
            order.setdefault(name)
        elif given not in _OFF:
            unknown.add(given)
    return tuple(order), unknown


Bias = tuple[int | str, float]


def _biases(value: object) -> list[Bias] | None:
    if value is None:
        return None
    pairs = [list(item) for item in value.items()] if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise PydanticCustomError("bias_type", "must be a list of pairs, or an object")
    if len(pairs) > _MAX_BIASES:
        raise PydanticCustomError("too_many", "must have at most {n} entries", {"n": _MAX_BIASES})
    return [_bias(pair, isinstance(value, dict)) for pair in pairs]


def _bias(pair: object, named: bool) -> Bias:
    if not isinstance(pair, list) or len(pair) != 2:
        raise PydanticCustomError("bias_type", "must hold pairs of a token id or a text, and a bias")
    what, bias = pair
    if named and re.fullmatch("-?[0-9]{1,10}", what):
        what = int(what)
    if type(what) is not int and not isinstance(what, str):
        raise PydanticCustomError("bias_type", "must name tokens by their ids or by text")
    if bias is False:
        return what, -math.inf
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) < 1e6:
        raise PydanticCustomError("bias_type", "must have numbers below a million for biases, or false")
    return what, float(bias)


_BIAS = {"anyOf": [{"type": "number", "exclusiveMinimum": -1e6, "exclusiveMaximum": 1e6}, {"const": False}]}
_WHAT = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_PAIR = {"type": "array", "prefixItems": [_WHAT, _BIAS], "minItems": 2, "maxItems": 2}
Biases = Annotated[
    list[Bias] | None,
    PlainValidator(_biases),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": _PAIR, "maxItems": _MAX_BIASES},
                {"type": "object", "additionalProperties": _BIAS, "maxProperties": _MAX_BIASES},
                {"type": "null"},
            ]
        }
    ),
]


def token_biases(biases: Iterable[Bias], serving: Serving) -> tuple[tuple[int, float], ...]:
    """By token; a text stands for each of its tokens. Raises ApiError for ids that the model does not have."""
    found: dict[int, float] = {}
    for what, bias in biases:
        if isinstance(what, int):
            found[checked(what, serving, "logit_bias")] = bias
        else:
            tokens = serving.model.vocab.tokenize(what, add_special=False, parse_special=False)
            found.update(dict.fromkeys(tokens, bias))
    return tuple(found.items())


def shown_biases(biases: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
    """As llama-server shows them; null is minus infinity."""
    return [{"token": token, "bias": bias if math.isfinite(bias) else None} for token, bias in biases]
