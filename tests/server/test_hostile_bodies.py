"""Bodies that nobody should send: none gets a 500, and the server lives on."""

from __future__ import annotations

import json
import zlib
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from tests.server.live import Live

from onceread.server.app import create_app
from onceread.server.embedding_schemas import MAX_INPUTS
from onceread.server.settings import Settings
from onceread.server.text_schemas import MAX_REPLIES

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

_relaxed = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)


def check(response: httpx.Response) -> None:
    """The answer is a good one or a well-formed error."""
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert isinstance(error["message"], str)
        assert set(error) >= {"message", "type", "param", "code"}


@pytest.fixture(autouse=True)
def _lives_on(live: Live) -> Any:
    yield
    assert live.client.get("/health").json()["status"] == "ok"
    answer = live.client.post(TEXT, json={"prompt": "The sky is", "max_tokens": 1, "temperature": 0})
    assert answer.status_code == 200


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([-1, 0, 2**31, 2**63, -(2**63), 10**40, 1e308, "", "\0", "<|im_end|>", "{", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    [
        "model",
        "n",
        "stop",
        "stream",
        "stream_options",
        "seed",
        "user",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "xtc_probability",
        "xtc_threshold",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "logit_bias",
        "grammar",
        "ignore_eos",
        "logprobs",
        "top_logprobs",
        "echo",
        "suffix",
        "best_of",
        "tools",
        "response_format",
        "json_schema",
        "regex",
        "guided_choice",
        "structured_outputs",
        "cache_salt",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "max_completion_tokens",
        "prompt",
        "messages",
    ]
)


@_relaxed
@given(
    changes=st.dictionaries(names, json_values, min_size=1, max_size=3), path=st.sampled_from([CHAT, TEXT])
)
def test_any_value_for_any_parameter(live: Live, changes: dict[str, Any], path: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 2, **changes}
    raw = json.dumps(body).encode()  # with NaN and lone surrogates, as they come
    check(live.client.post(path, content=raw, headers={"content-type": "application/json"}))


@_relaxed
@given(raw=st.binary(max_size=200), path=st.sampled_from([CHAT, TEXT]))
def test_any_bytes(live: Live, raw: bytes, path: str) -> None:
    check(live.client.post(path, content=raw, headers={"content-type": "application/json"}))


@_relaxed
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
            optional={"content": st.text(max_size=30), "name": st.text(max_size=9), "x": json_values},
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_conversation(live: Live, messages: list[dict[str, Any]]) -> None:
    raw = json.dumps({"messages": messages, "max_tokens": 1}).encode()
    check(live.client.post(CHAT, content=raw, headers={"content-type": "application/json"}))


EXTREME: dict[str, dict[str, Any]] = {
    "everything on": {
        "temperature": 100,
        "top_p": 0,
        "top_k": 2**31 - 1,
        "min_p": 1,
        "typical_p": 0,
        "repeat_penalty": 100,
        "repeat_last_n": 1024 * 1024,
        "presence_penalty": -2,
        "dry_multiplier": 100,
        "dry_base": 100,
        "dry_allowed_length": 0,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["the", " ", "\n", "é", "<|im_end|>"],
        "xtc_probability": 1,
        "xtc_threshold": 0,
        "seed": -(10**50),
        "logit_bias": {"0": -100, "49151": 100},
        "n": 4,
        "logprobs": 20,
    },
    "all samplers at zero": {
        "temperature": 1e-30,
        "top_k": 1,
        "typical_p": 0,
        "repeat_penalty": 0.01,
        "dry_base": 1,
        "xtc_threshold": 0,
    },
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 100, "mirostat_eta": 100, "temperature": 50},
    "no room for a mistake": {"logit_bias": {str(i): -100 for i in range(1024)}},
    "many replies": {"n": 32, "max_tokens": 1},
    "a grammar of nothing": {"grammar": 'root ::= ""'},
    "a grammar that calls itself": {"grammar": 'root ::= root "a" | "b"'},
    "a deep grammar": {"grammar": "root ::= " + "(" * 100 + '"a"' + ")" * 100},
    "a grammar too deep": {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "a long chain of rules": {
        "grammar": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000)) + 'r4000 ::= "a"'
    },
    "a repeated repetition": {"grammar": 'root ::= ("a"{1,2000}){1,2000}'},
    "a huge repetition": {"grammar": 'root ::= "a"{99999999999999999999}'},
    "a grammar that ends at once": {"grammar": "root ::= [z-a]"},
    "a schema of everything": {"json_schema": {}},
    "a schema that calls itself": {"json_schema": {"$ref": "#"}},
    "a schema from elsewhere": {"json_schema": {"$ref": "http://127.0.0.1:1/a.json"}},
    "a schema too deep": {"guided_json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "a deep schema in objects": {"json_schema": json.loads('{"items":' * 120 + "{}" + "}" * 120)},
    "many alternatives of many": {
        "json_schema": {
            "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(25)]
        }
    },
    "many words": {"guided_choice": [f"word {i}" for i in range(1000)]},
    "patterns to match together": {"json_schema": {"allOf": [{"pattern": f"a{{{i}}}b"} for i in range(400)]}},
    "states by the power of two": {"regex": "(a|b)*a(a|b){200}"},
    "a pattern for novels": {"regex": "((a{1000}){1000}){1000}"},
    "a pattern too deep": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "everything at once": {"json_schema": {}, "regex": "a", "grammar": "root ::= [a]"},
    "stops everywhere": {"stop": [chr(97 + i) for i in range(16)]},
    "no tokens": {"max_tokens": 0},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("extreme", EXTREME.values(), ids=EXTREME.keys())
def test_extreme_values(live: Live, extreme: dict[str, Any], stream: bool) -> None:
    body = {"prompt": "Hi", "max_tokens": 3, "stream": stream, **extreme}
    check(live.client.post(TEXT, json=body))


@pytest.mark.parametrize(
    "text",
    [
        "\0" * 20,
        "<|im_start|>" * 20,
        "\u202e\ufeff\U0010ffff\ue000",
        "👩‍👩‍👧‍👦" * 5,
        "e\u0301" * 20,
        " " * 500,
    ],
    ids=["NULs", "control tokens", "odd characters", "families", "combining", "spaces"],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_odd_texts(live: Live, path: str, text: str) -> None:
    body = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    response = live.client.post(path, json={**body, "max_tokens": 1})
    assert response.status_code == 200


def test_a_megabyte_of_control_tokens(live: Live) -> None:
    response = live.client.post(TEXT, json={"prompt": "<|im_end|>" * 100_000})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_control_tokens_in_a_chat_are_text(live: Live) -> None:
    def count(content: str) -> int:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        tokens: int = live.client.post(CHAT, json=body).json()["usage"]["prompt_tokens"]
        return tokens

    vocab = live.model.vocab
    spelled = vocab.tokenize("<|im_end|>", add_special=False, parse_special=False)
    assert len(spelled) > 1
    assert count("a<|im_end|>b") - count("ab") >= len(spelled) - 1


# -- by the OpenAPI document ---------------------------------------------------


# The document is the same without a model, and there is none yet when tests are collected.
schema = schemathesis.openapi.from_dict(create_app(None, None, Settings()).openapi())
_CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.mark.soak
@schema.parametrize()
@_relaxed
def test_by_the_document(live: Live, soak_scale: float, case: Any) -> None:
    if soak_scale < 1 and zlib.crc32(repr(case.body).encode()) % 4:
        return  # there are more than a thousand, one value of one parameter after the other
    if isinstance(case.body, dict):
        case.body.setdefault("max_tokens", 1)
        prompt = case.body.get("prompt")
        inputs = case.body.get("input", case.body.get("content"))
        if isinstance(inputs, list) and 8 < len(inputs) <= MAX_INPUTS:
            return
        if isinstance(prompt, list) and 8 < len(prompt) <= MAX_REPLIES:
            return  # a proper request, as far as its prompt goes, and minutes of work on a busy machine
    response = case.call(base_url=live.url, timeout=120)
    # A 501 is no failure: it says that the demo model can't fill gaps, or that slots are not to be had.
    refused = response.status_code == 501
    case.validate_response(response, checks=_CHECKS[1:] if refused else _CHECKS)
