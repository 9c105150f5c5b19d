"""llama-server's native API on the demo model, called as its front ends call it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.clients.sure import COUNTING
from tests.server.live import Live

pytestmark = pytest.mark.model

GREEDY: Any = {"temperature": 0, "n_predict": 8}


@pytest.fixture
def client(live: Live) -> httpx.Client:
    return httpx.Client(base_url=live.url, headers={"Authorization": "Bearer sk-anna"}, timeout=60)


def complete(client: httpx.Client, prompt: Any, **more: Any) -> Any:
    response = client.post("/completion", json={"prompt": prompt, **GREEDY, **more})
    assert response.status_code == 200, response.text
    return response.json()


def test_whole_and_streamed_say_the_same(client: httpx.Client) -> None:
    complete(client, COUNTING)
    whole = complete(client, COUNTING)
    assert whole["content"]
    assert whole["tokens_predicted"] <= 8
    body = {"prompt": COUNTING, "stream": True, **GREEDY}
    with client.stream("POST", "/completion", json=body) as response:
        parts = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["timings"]["prompt_n"] == 1  # all but the last token were known


def test_its_numbers_are_those_of_the_other_face(client: httpx.Client) -> None:
    prompt = "Once upon a time there was a fox, and the fox said:"
    first = complete(client, prompt, return_tokens=True)
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8}
    second = client.post("/v1/completions", json=body).json()
    assert second["usage"]["prompt_tokens"] == first["tokens_evaluated"]
    assert second["timings"]["prompt_n"] == 1
    tokens = client.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    assert len(tokens) == first["tokens_evaluated"]
    assert client.post("/detokenize", json={"tokens": first["tokens"]}).json()["content"] == first["content"]
    more = complete(client, [*tokens, *first["tokens"]], n_predict=1)
    assert more["tokens_cached"] == len(tokens) + len(first["tokens"]) - 1


def test_a_chat_by_hand(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    said = complete(client, prompt)
    chat = {"messages": messages, "temperature": 0, "max_tokens": 8}
    answer = client.post("/v1/chat/completions", json=chat).json()
    assert answer["usage"]["prompt_tokens"] == said["tokens_evaluated"]
    assert answer["timings"]["prompt_n"] == 1


def test_probabilities_biases_and_samplers(client: httpx.Client) -> None:
    said = complete(client, COUNTING, n_probs=3, n_predict=2)
    first = said["completion_probabilities"][0]
    assert len(first["top_logprobs"]) == 3
    assert first["id"] == first["top_logprobs"][0]["id"]
    banned = complete(client, COUNTING, n_predict=1, logit_bias=[[first["id"], False]])
    assert banned["content"] != first["token"]
    hot = {"temperature": 50.0, "top_k": 1, "seed": 3}
    assert (
        complete(client, COUNTING, samplers=["top_k", "temperature"], **hot)["content"]
        == complete(client, COUNTING)["content"]
    )
    assert complete(client, COUNTING, samplers=["temperature"], **hot)["content"] != said["content"]


def test_limits_and_stop_words(client: httpx.Client) -> None:
    counting = "One, two, three, four, five, six, seven, one, two, three,"
    said = complete(client, counting, stop=[" five"], n_predict=24)
    assert (said["stop_type"], said["stopping_word"]) == ("word", " five")
    assert complete(client, counting, n_predict=0)["stop_type"] == "limit"
    listing = "a:\n    one\n    two\n    three\nb:\n    one\n    two\n    three\nc:\n    one\n"
    cut = complete(client, listing, n_indent=4, n_predict=40)
    assert cut["stop_type"] in ("limit", "eos")
    assert all(line.startswith("    ") for line in cut["content"].split("\n")[1:] if line.strip())


def test_what_is_too_long(client: httpx.Client) -> None:
    response = client.post("/completion", json={"prompt": "a b " * 5000})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] > error["n_ctx"]


def test_props_slots_and_a_model_without_gaps(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 4096)
    assert "<|im_start|>" in props["chat_template"]
    assert len(client.get("/slots").json()) == 4
    infill = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (infill.status_code, infill.json()["error"]["type"]) == (501, "not_supported_error")
