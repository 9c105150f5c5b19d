"""The examples of llama-cpp-python's README, by its own `Llama` and by ours: the same keys and types of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import onceread
from onceread.native.backend import extra_buffers_safe

pytestmark = pytest.mark.model

Shape = Any
Example = Callable[[Any, str], Any]

JSON_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
    {"role": "user", "content": "Who won the world series in 2020"},
]
USER_DETAIL = {
    "type": "function",
    "function": {
        "name": "UserDetail",
        "parameters": {
            "type": "object",
            "title": "UserDetail",
            "properties": {
                "name": {"title": "Name", "type": "string"},
                "age": {"title": "Age", "type": "integer"},
            },
            "required": ["name", "age"],
        },
    },
}


def text(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, verbose=False)
    return llm(
        "Q: Name the planets in the solar system? A: ", max_tokens=8, stop=["Q:", "\n"], echo=True
    ), llm


def text_stream(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, verbose=False)
    return list(llm("Q: Name the planets in the solar system? A: ", max_tokens=6, stream=True)), llm


def text_logprobs(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, logits_all=True, verbose=False)
    return llm.create_completion("The sea is", max_tokens=3, logprobs=2), llm


def chat(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, chat_format="chatml", verbose=False)
    messages = [
        {"role": "system", "content": "You are an assistant who perfectly describes images."},
        {"role": "user", "content": "Describe this image in detail please."},
    ]
    return llm.create_chat_completion(messages=messages, max_tokens=6), llm


def chat_stream(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, verbose=False)
    messages = [{"role": "user", "content": "Hello"}]
    return list(llm.create_chat_completion(messages=messages, max_tokens=6, stream=True)), llm


def chat_logprobs(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, logits_all=True, verbose=False)
    messages = [{"role": "user", "content": "Hello"}]
    return llm.create_chat_completion(messages=messages, max_tokens=2, logprobs=True, top_logprobs=2), llm


def json_object(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, chat_format="chatml", verbose=False)
    return llm.create_chat_completion(
        messages=JSON_MESSAGES, response_format={"type": "json_object"}, temperature=0.7, max_tokens=24
    ), llm


def json_schema(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, chat_format="chatml", verbose=False)
    schema = {
        "type": "object",
        "properties": {"team_name": {"type": "string"}},
        "required": ["team_name"],
    }
    return llm.create_chat_completion(
        messages=JSON_MESSAGES,
        response_format={"type": "json_object", "schema": schema},
        temperature=0.7,
        max_tokens=24,
    ), llm


def tools(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, chat_format="chatml-function-calling", n_ctx=1024, verbose=False)
    return llm.create_chat_completion(
        messages=[{"role": "user", "content": "Extract Jason is 25 years old"}],
        tools=[USER_DETAIL],
        tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        temperature=0,
        max_tokens=100,
    ), llm


def embeddings(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, embedding=True, verbose=False)
    return llm.create_embedding(["Hello, world!", "Goodbye, world!"]), llm


def one_embedding(module: Any, path: str) -> Any:
    llm = module.Llama(model_path=path, embedding=True, pooling_type=1, verbose=False)
    return llm.create_embedding("Hello, world!"), llm


OURS_TOO = {  # documented in docs/migrating.md
    "system_fingerprint",
    "timings",
    "prompt_tokens_details",
    "refusal",
    "usage",  # of a stream's last chunk
}
EXAMPLES = [
    text, text_stream, text_logprobs, chat, chat_stream, chat_logprobs, json_object, json_schema, tools,
    embeddings, one_embedding,
]  # fmt: skip


def shape(value: Any) -> Shape:
    """Keys and types, all the way down. A list has the shape of each of its items."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if hasattr(value, "__float__") and not isinstance(value, str) else type(value).__name__


def differences(theirs: Shape, ours: Shape, path: str = "") -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if path.endswith(".top_logprobs[]") and "token" not in theirs:
            return  # of a text completion: keys are tokens
        for key in theirs:
            if key not in ours:
                yield f"{path}.{key} is missing"
            else:
                yield from differences(theirs[key], ours[key], f"{path}.{key}")
        allowed = OURS_TOO | ({"content"} if path.endswith(".delta") and "role" in ours else set())
        yield from (f"{path}.{key} is more" for key in ours if key not in theirs and key not in allowed)
    elif isinstance(theirs, list) and isinstance(ours, list):
        for item in ours:  # lengths are the model's affair; every item must be like one of theirs
            found = [list(differences(other, item, f"{path}[]")) for other in theirs]
            if found and all(found):
                yield from min(found, key=len)
        if bool(theirs) != bool(ours):
            yield f"{path} is empty in one of them"
    elif path.endswith(".bytes"):
        return  # we give them, they don't
    elif theirs != ours:
        yield f"{path} is {ours}, not {theirs}"


@pytest.fixture(autouse=True)
def _their_weights_are_read_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of the binding can't do the products that they choose by themselves."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def safe() -> Any:
        params = defaults()
        params.use_extra_bufts = extra_buffers_safe()
        return params

    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", safe)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_an_example_has_the_same_shape_with_only_the_import_changed(
    example: Example, smollm2_path: Path
) -> None:
    results = []
    for module in (llama_cpp, onceread):
        result, llm = example(module, str(smollm2_path))
        llm.close()
        results.append(shape(result))
    assert list(differences(*results)) == []


def test_a_missing_key_another_type_and_a_key_too_many_are_told() -> None:
    theirs = shape({"a": 1, "b": {"c": "x"}, "d": [1]})
    assert list(differences(theirs, shape({"a": "1", "b": {}, "d": [None], "e": 1}))) == [
        ".a is str, not number",
        ".b.c is missing",
        ".d[] is NoneType, not number",
        ".e is more",
    ]
