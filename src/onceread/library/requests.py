"""From the arguments of llama-cpp-python's methods to the requests that the server's faces have, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeVar

from onceread.engine.request import Request
from onceread.library.errors import InvalidParameter
from onceread.library.grammar import LlamaGrammar
from onceread.library.hooks import as_criterion, as_processor
from onceread.library.setup import Setup
from onceread.server.auth import Caller
from onceread.server.body import from_fields
from onceread.server.chat_schemas import ChatCompletionRequest
from onceread.server.chat_turn import ChatTurn
from onceread.server.errors import ApiError
from onceread.server.generation_fields import GenerationFields
from onceread.server.llama_infill import infill_tokens
from onceread.server.state import Serving
from onceread.server.text_completions import engine_requests
from onceread.server.text_schemas import CompletionRequest

_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
    "mirostat_tau",
    "mirostat_eta",
    "logprobs",
    "stream",
)
_UNTOUCHED = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "mirostat": 0,
}
_BIAS = 100.0  # what the schema takes; as good as never and always

Body = TypeVar("Body", bound=GenerationFields)
Seeds = Callable[[], int | None]


def namespace_of(body: GenerationFields | None = None) -> str:
    """The same as of a server's clients without a key: on one cache directory they share what was read."""
    return Caller().namespace(None if body is None else body.cache_salt)


def chat_body(
    given: Mapping[str, Any], options: Mapping[str, Any], setup: Setup, seeds: Seeds
) -> ChatCompletionRequest:
    """``given``: the arguments of ``create_chat_completion``; ``options``: more of our own. Raises InvalidParameter."""
    tools, choice = given["tools"], given["tool_choice"]
    if given["functions"] is not None:  # the older way to say it
        functions = _sequence(given["functions"], "functions", "a list")
        tools = [{"type": "function", "function": function} for function in functions]
    called = given["function_call"]
    if isinstance(called, dict):
        choice = {"type": "function", "function": {"name": called.get("name")}}
    elif called is not None:
        choice = called
    said = {
        "messages": [
            _without_none(message) for message in _sequence(given["messages"], "messages", "a list")
        ],
        "tools": tools,
        "tool_choice": choice,
        "response_format": given["response_format"],
        "top_logprobs": given["top_logprobs"] if given["logprobs"] else None,
    }
    return _body(ChatCompletionRequest, said, given, options, setup, seeds)


def text_body(
    given: Mapping[str, Any], options: Mapping[str, Any], setup: Setup, seeds: Seeds
) -> CompletionRequest:
    """``given``: the arguments of ``create_completion``; ``options``: more of our own. Raises InvalidParameter."""
    prompt = given["prompt"]
    if not isinstance(prompt, str):
        prompt = _token_ids(prompt)
    said = {"prompt": prompt, "echo": given["echo"]}
    return _body(CompletionRequest, said, given, options, setup, seeds)


def chat_request(turn: ChatTurn, given: Mapping[str, Any]) -> Request:
    """What the engine is asked. Raises ApiError, ChatError."""
    return _with_hooks(turn.request(), given)


def text_request(
    body: CompletionRequest, given: Mapping[str, Any], serving: Serving, setup: Setup
) -> Request:
    """What the engine is asked, a gap to be filled where there is a suffix. Raises ApiError, ChatError."""
    suffix = given["suffix"]
    (request,) = engine_requests(body, serving, setup.settings, namespace_of(body), None)
    if suffix is not None:
        prompt = given["prompt"]
        if not isinstance(suffix, str) or not isinstance(prompt, str):
            raise InvalidParameter("suffix: it and the prompt must be strings", "suffix")
        try:
            tokens = infill_tokens(prompt, suffix, serving, max_tokens=request.max_tokens)
        except ApiError as error:
            raise InvalidParameter(f"suffix: {error}", "suffix") from error
        request = replace(request, prompt=tokens)
    return _with_hooks(request, given)


def _body(
    model: type[Body],
    said: dict[str, Any],
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    setup: Setup,
    seeds: Seeds,
) -> Body:
    for name in options:
        if name not in model.model_fields:
            raise TypeError(f"unexpected keyword argument {name!r}")
    if given["tfs_z"] != 1.0:
        raise InvalidParameter("tfs_z is not supported: llama.cpp has no such sampler any more", "tfs_z")
    said |= {name: _plain(given[name]) for name in _SAME if name not in said}
    said["mirostat"] = given["mirostat_mode"]
    said["top_k"] = max(0, _whole(given["top_k"], "top_k"))
    if (
        isinstance(said["temperature"], int | float) and said["temperature"] < 0
    ):  # llama-cpp-python's way to say: by the model's own probabilities
        said |= _UNTOUCHED
    limit = 0 if given["max_tokens"] is None else _whole(given["max_tokens"], "max_tokens")
    said["max_tokens"] = limit if limit > 0 else None
    said["stop"] = _stops(given["stop"])
    said["seed"] = seeds() if given["seed"] is None else _whole(given["seed"], "seed")
    said["logit_bias"] = _biases(given["logit_bias"])
    said["repeat_last_n"] = setup.last_n_tokens
    if said.get("response_format") is None:  # which goes first, as llama-cpp-python has it
        said |= _grammar(given["grammar"])
    return from_fields(model, {**said, **options})


def _with_hooks(request: Request, given: Mapping[str, Any]) -> Request:
    processor = as_processor(given["logits_processor"])
    criterion = as_criterion(given.get("stopping_criteria"))
    if processor is None and criterion is None:
        return request
    return replace(request, logits_processor=processor, stopping_criteria=criterion)


def _stops(given: str | Sequence[str] | None) -> list[str] | None:
    if given is None or isinstance(given, str):
        return [given] if given else None
    return list(_sequence(given, "stop", "a string or a list of strings")) or None


def _biases(given: Mapping[Any, float] | None) -> dict[str, float] | None:
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise InvalidParameter("logit_bias: must be a dict of token ids and biases", "logit_bias")
    return {str(token): min(_BIAS, max(-_BIAS, float(bias))) for token, bias in given.items()}


def _grammar(given: Any) -> dict[str, Any]:
    """A grammar's field: of a LlamaGrammar, ours or llama-cpp-python's, or of GBNF as it is."""
    if given is None:
        return {}
    if isinstance(given, LlamaGrammar):
        constraint = given.constraint
        schema = constraint.kind == "json_schema"
        return {"json_schema": json.loads(constraint.text)} if schema else {"grammar": constraint.text}
    text = given if isinstance(given, str) else getattr(given, "_grammar", None)
    if not isinstance(text, str):
        raise InvalidParameter("grammar: must be a LlamaGrammar, or GBNF as a string", "grammar")
    return {"grammar": text}


def _token_ids(given: Any) -> list[int]:
    what = "a string or token ids"
    if isinstance(given, bytes | bytearray):  # would be read as token ids
        raise InvalidParameter(f"prompt: must be {what}, not bytes", "prompt")
    try:
        return [index(token) for token in _sequence(given, "prompt", what)]
    except TypeError:
        raise InvalidParameter(f"prompt: must be {what}", "prompt") from None


def _whole(value: Any, param: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(f"{param}: must be a whole number", param) from None


def _sequence(given: Any, param: str, what: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise InvalidParameter(f"{param}: must be {what}", param) from None


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item() if hasattr(value, "item") else value


def _without_none(message: Any) -> Any:
    """Messages that a stream or a reply was put together from name what is not there."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if value is not None or key in ("role", "content")}
