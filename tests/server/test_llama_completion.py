"""llama-server's ``/completion``: what its clients send, and what they read."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app

from onceread.engine.errors import Cancelled, ContextLengthExceeded, EngineFailed, QueueFull
from onceread.engine.request import (
    CachedBySource,
    DoneEvent,
    Explanation,
    FinishEvent,
    RequestHandle,
    TextEvent,
    TokenLogprob,
    Usage,
)
from onceread.native.params import SAMPLERS

PATH = "/completion"
WARNING = "x-onceread-warning"


def ask(client: TestClient, path: str = PATH, **body: Any) -> Any:
    response = client.post(path, json={"prompt": "a", **body})
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: Any, status: int, kind: str = "invalid_request_error") -> dict[str, Any]:
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert (error["code"], error["type"]) == (status, kind)
    assert error["message"]
    return error  # type: ignore[no-any-return]


def chunks(client: TestClient, path: str = PATH, **body: Any) -> list[dict[str, Any]]:
    response = client.post(path, json={"prompt": "a", "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: {") for line in lines)  # no [DONE]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


class TestAnswers:
    @pytest.mark.parametrize("path", ["/completion", "/completions"])
    def test_whole(self, client: TestClient, path: str) -> None:
        said = ask(client, path, prompt="a<|im_end|>")
        settings, timings = said.pop("generation_settings"), said.pop("timings")
        assert said == {
            "index": 0,
            "content": "héllo",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": "fake",
            "tokens_predicted": 2,
            "tokens_evaluated": 2,
            "tokens_cached": 1,
            "prompt": "a<|im_end|>",
            "has_new_line": False,
            "truncated": False,
            "stop_type": "eos",
            "stopping_word": "",
        }
        assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (1, 1, 2)
        assert (settings["n_predict"], settings["n_ctx"], settings["model"]) == (-1, 100, "fake")

    def test_streams_say_the_same(self, client: TestClient) -> None:
        *parts, last = chunks(client)
        assert [part["content"] for part in parts] == ["hé", "llo"]
        assert [(part["stop"], part["index"], part["tokens"]) for part in parts] == [(False, 0, [])] * 2
        whole = ask(client)
        whole["generation_settings"]["stream"] = True
        assert last == {**whole, "content": ""}

    def test_several_prompts_and_replies_come_as_a_list(self, client: TestClient) -> None:
        said = ask(client, prompt=["a", "bcd"], n_cmpl=2)
        assert [(one["index"], one["prompt"], one["tokens_evaluated"]) for one in said] == [
            (0, "a", 1), (1, "a", 1), (2, "bcd", 3), (3, "bcd", 3),
        ]  # fmt: skip
        streamed = chunks(client, prompt=["a", "bcd"], n=2)
        for index in range(4):
            parts = [part for part in streamed if part["index"] == index]
            assert "".join(part["content"] for part in parts) == "héllo"
            assert [part["stop"] for part in parts] == [False, False, True]

    def test_how_it_ended(self, client: TestClient, engine: FakeEngine) -> None:
        def end(reason: Any, stop: str | None, n_prompt: int = 1) -> dict[str, Any]:
            def script(_: FakeEngine, handle: RequestHandle) -> None:
                handle.push(TextEvent(0, "x\n", 1))
                handle.push(FinishEvent(0, reason, stop))
                handle.push(DoneEvent(Usage(n_prompt, n_prompt, CachedBySource(), 3)))

            engine.script = script
            said = ask(client)
            assert said["tokens_predicted"] == 3
            assert said["has_new_line"]
            return {key: said[key] for key in ("stop_type", "stopping_word", "truncated")}

        assert end("stop", None) == {"stop_type": "eos", "stopping_word": "", "truncated": False}
        assert end("stop", "###") == {"stop_type": "word", "stopping_word": "###", "truncated": False}
        assert end("length", None) == {"stop_type": "limit", "stopping_word": "", "truncated": False}
        assert end("length", None, 97)["truncated"]

    def test_only_some_fields(self, client: TestClient) -> None:
        fields = [
            "content",
            "timings/prompt_n",
            "generation_settings/n_ctx",
            "timings/nothing",
            "content/x",
            "",
        ]
        asked = {"response_fields": fields}
        assert ask(client, **asked) == {
            "content": "héllo",
            "timings/prompt_n": 1,
            "generation_settings/n_ctx": 100,
        }
        assert chunks(client, **asked)[-1] == {
            "content": "", "timings/prompt_n": 1, "generation_settings/n_ctx": 100,
        }  # fmt: skip
        assert ask(client, response_fields=[]) == {}

    def test_explanations_on_request(self, client: TestClient, engine: FakeEngine) -> None:
        def script(_: FakeEngine, handle: RequestHandle) -> None:
            handle.push(FinishEvent(0, "stop"))
            known = Explanation(3, "abc", "d", "e") if handle.request.explain else None
            handle.push(DoneEvent(Usage(1, 1), None, known))

        engine.script = script
        assert "explain" not in ask(client)
        assert ask(client, explain=True)["explain"]["position"] == 3
        assert chunks(client, explain=True)[-1]["explain"]["position"] == 3

    def test_probabilities(self, client: TestClient, engine: FakeEngine) -> None:
        piece = "é".encode()
        top = ((7, piece, -0.5), (8, piece[:1], -math.inf))

        def script(_: FakeEngine, handle: RequestHandle) -> None:
            handle.push(TextEvent(0, "é", 1, (TokenLogprob(7, piece, -0.5, top),)))
            handle.push(FinishEvent(0, "stop"))
            handle.push(DoneEvent(Usage(1, 1, CachedBySource(), 1)))

        engine.script = script
        first = {"id": 7, "token": "é", "bytes": [195, 169], "logprob": -0.5}
        second = {"id": 8, "token": "bytes:\\xc3", "bytes": [195], "logprob": -9999.0}
        expected = [{**first, "top_logprobs": [first, second]}]
        assert ask(client, n_probs=2)["completion_probabilities"] == expected
        assert chunks(client, n_probs=2)[0]["completion_probabilities"] == expected
        assert [request.logprobs for request in engine.requests] == [2, 2]
        ask(client, logprobs=3)
        ask(client, n_probs=0, logprobs=3)
        ask(client, logprobs=True)
        assert [request.logprobs for request in engine.requests[2:]] == [3, None, 1]

    def test_token_ids_on_request(self, client: TestClient, engine: FakeEngine) -> None:
        said = ask(client, return_tokens=True)
        assert said["tokens"] == [1, 1]  # the fake says this of each of its two events
        assert "completion_probabilities" not in said
        assert [part["tokens"] for part in chunks(client, return_tokens=True)] == [[1], [1], []]
        assert ask(client, n_probs=1)["tokens"] == []
        assert [request.logprobs for request in engine.requests] == [0, 0, 1]


class TestPrompts:
    @pytest.mark.parametrize(
        ("prompt", "tokens"),
        [
            ("ab", [[97, 98]]),
            ("a<|im_end|>", [[97, 258]]),
            ([97, 98], [[97, 98]]),
            ([97, "b<|im_end|>", 99], [[97, 98, 258, 99]]),
            (["a", "b"], [[97], [98]]),
            ([[97], "b", ["c", 100], [101, "f"]], [[97], [98], [99, 100], [101, 102]]),
            ({"prompt_string": "a"}, [[97]]),
            ({"prompt_string": ["a", 98], "multimodal_data": []}, [[97, 98]]),
            ([{"prompt_string": "a"}, "b"], [[97], [98]]),
        ],
        ids=str,
    )
    def test_shapes(
        self, client: TestClient, engine: FakeEngine, prompt: Any, tokens: list[list[int]]
    ) -> None:
        ask(client, prompt=prompt)
        assert [list(request.prompt) for request in engine.requests] == tokens

    def test_the_beginning_is_added_where_text_begins_it(
        self, client: TestClient, engine: FakeEngine
    ) -> None:
        serving = client.app.state.onceread.serving()  # type: ignore[attr-defined]
        serving.model.vocab.add_bos = True
        for prompt in ("a", ["a", 98], [98, "a"], ["", 98], ["<|endoftext|>a", 98]):
            ask(client, prompt=prompt)
        assert [list(request.prompt) for request in engine.requests] == [
            [256, 97], [256, 97, 98], [98, 97], [256, 98], [256, 97, 98],
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("prompt", "said"),
        [
            (None, "must be a string"),
            (5, "must be a string"),
            ([], "at least one"),
            ([[]], "must be a string"),
            ([True], "must be a string"),
            ([97, True], "must be a string"),
            ([1.5], "must be a string"),
            ({}, "must be a string"),
            ({"prompt_string": 5}, "must be a string"),
            ({"prompt_string": "a", "multimodal_data": ["x"]}, "reads text only"),
            ([259], "259 is not a token id"),
            ([-1], "-1 is not a token id"),
            ([10**1000], "a huge number is not"),
            (["a"] * 257, "at most 256"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_what_is_no_prompt(self, client: TestClient, engine: FakeEngine, prompt: Any, said: str) -> None:
        error = error_of(client.post(PATH, json={"prompt": prompt}), 400)
        assert said in error["message"]
        assert error["param"] == "prompt"
        assert engine.requests == []

    def test_the_other_faces_read_the_same_tokens(self, client: TestClient, engine: FakeEngine) -> None:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a<|im_end|>"}]
        prompt = client.post("/apply-template", json={"messages": messages[:1]}).json()["prompt"]
        ask(client, prompt=prompt)
        client.post("/v1/completions", json={"prompt": prompt})
        client.post("/v1/chat/completions", json={"messages": messages[:1]})
        tokens = client.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
        client.post(PATH, json={"prompt": tokens})
        client.post("/api/chat", json={"messages": messages[:1]})
        client.post("/api/generate", json={"prompt": prompt, "raw": True})
        assert len(engine.requests) == 6
        assert len({(request.prompt, request.namespace) for request in engine.requests}) == 1


class TestParameters:
    def sampled(self, client: TestClient, engine: FakeEngine, **body: Any) -> Any:
        ask(client, **body)
        return engine.requests[-1].sampling

    def test_limits(self, client: TestClient, engine: FakeEngine) -> None:
        for body in (
            {},
            {"n_predict": -1},
            {"n_predict": 0},
            {"n_predict": 7, "max_tokens": 9},
            {"max_tokens": 9},
        ):
            ask(client, **body)
        assert [request.max_tokens for request in engine.requests] == [None, None, 0, 7, 9]

    def test_the_servers_limit_holds(self, engine: FakeEngine) -> None:
        ask(TestClient(fake_app(engine, max_tokens_limit=5)), n_predict=-1)
        assert engine.requests[0].max_tokens == 5

    def test_samplers_are_those_that_are_named_in_that_order(
        self, client: TestClient, engine: FakeEngine
    ) -> None:
        def order(samplers: Any) -> tuple[str, ...]:
            return self.sampled(client, engine, samplers=samplers).order  # type: ignore[no-any-return]

        assert order(None) == SAMPLERS
        assert order([]) == ()
        assert order(["temperature", "top_k", "typical_p", "top_k"]) == ("temperature", "top_k", "typ_p")
        assert order("edskypmxt") == SAMPLERS
        llamacpp = [
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature",
        ]
        assert order([*llamacpp, "adaptive_p"]) == SAMPLERS

    def test_samplers_that_are_not_known_are_named(self, client: TestClient) -> None:
        body = {"prompt": "a", "samplers": ["top_k", "infill", "tfs_z"], "timings_per_token": True}
        warning = client.post(PATH, json=body).headers[WARNING]
        assert warning == "ignored parameters: samplers.infill, samplers.tfs_z, timings_per_token"
        assert (
            WARNING
            not in client.post(PATH, json={"prompt": "a", "samplers": ["top_k", "top_n_sigma"]}).headers
        )

    @pytest.mark.parametrize(
        ("given", "biases"),
        [
            ([[97, 1.5], [98, False]], {97: 1.5, 98: -math.inf}),
            ([["ab", -2]], {97: -2.0, 98: -2.0}),
            ({"97": 1, "b": False}, {97: 1.0, 98: -math.inf}),
            ([], {}),
            (None, {}),
        ],
        ids=str,
    )
    def test_biases(
        self, client: TestClient, engine: FakeEngine, given: Any, biases: dict[int, float]
    ) -> None:
        said = ask(client, logit_bias=given)
        assert dict(engine.requests[0].sampling.logit_bias) == biases
        shown = {entry["token"]: entry["bias"] for entry in said["generation_settings"]["logit_bias"]}
        assert shown == {token: None if math.isinf(bias) else bias for token, bias in biases.items()}

    def test_stop_words(self, client: TestClient, engine: FakeEngine) -> None:
        for stop in ("x", ["", "x", "y"], [], None, ["\nName:"] * 40):
            ask(client, stop=stop)
        assert [len(request.stop) for request in engine.requests] == [1, 2, 0, 0, 40]

    @pytest.mark.parametrize("seed", [-1, 2**32 - 1])
    def test_seeds_that_mean_any(self, client: TestClient, engine: FakeEngine, seed: int) -> None:
        assert self.sampled(client, engine, seed=seed).seed is None
        assert self.sampled(client, engine, seed=7).seed == 7

    def test_a_temperature_below_zero_is_greedy(self, client: TestClient, engine: FakeEngine) -> None:
        assert self.sampled(client, engine, temperature=-1).temperature == -1

    def test_a_schema_and_an_empty_grammar_beside_it(self, client: TestClient, engine: FakeEngine) -> None:
        sampling = self.sampled(client, engine, json_schema={"type": "string"}, grammar="")
        assert sampling.constraint.kind == "json_schema"

    @pytest.mark.parametrize(
        "body",
        [
            {"cache_prompt": False},
            {"id_slot": 3},
            {"n_keep": -1, "n_discard": 5, "n_cache_reuse": 256},
            {"t_max_prompt_ms": 1},
            {"dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "min_keep": 0, "top_n_sigma": -1.0},
            {"adaptive_target": -0.01, "lora": [], "post_sampling_probs": False},
        ],
        ids=str,
    )
    def test_what_changes_nothing_is_accepted(self, client: TestClient, body: dict[str, Any]) -> None:
        response = client.post(PATH, json={"prompt": "a", **body})
        assert response.status_code == 200
        assert WARNING not in response.headers

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"dynatemp_range": 0.5}, "dynatemp_range"),
            ({"top_n_sigma": 1.0}, "top_n_sigma"),
            ({"adaptive_target": 0.5}, "adaptive_target"),
            ({"min_keep": 2}, "min_keep"),
            ({"post_sampling_probs": True}, "post_sampling_probs"),
            ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
            ({"n_predict": -3}, "n_predict"),
            ({"n_predict": "5"}, "n_predict"),
            ({"n_probs": 129}, "n_probs"),
            ({"n_cmpl": 0}, "n_cmpl"),
            ({"n_cmpl": 32, "prompt": ["a"] * 9}, "n_cmpl"),
            ({"n_indent": -1}, "n_indent"),
            ({"t_max_predict_ms": 1.5}, "t_max_predict_ms"),
            ({"stop": 5}, "stop"),
            ({"stop": ["a"] * 129}, "stop"),
            ({"samplers": 5}, "samplers"),
            ({"samplers": ["top_k"] * 33}, "samplers"),
            ({"response_fields": "content"}, "response_fields"),
            ({"logit_bias": [[97]]}, "logit_bias"),
            ({"logit_bias": [[97, True]]}, "logit_bias"),
            ({"logit_bias": [[259, 1]]}, "logit_bias"),
            ({"logit_bias": [[1.5, 1]]}, "logit_bias"),
            ({"logit_bias": {"-1": 1}}, "logit_bias"),
            ({"logit_bias": {"a": 1e7}}, "logit_bias"),
            ({"logit_bias": 5}, "logit_bias"),
            ({"temperature": "hot"}, "temperature"),
        ],
        ids=str,
    )
    def test_what_is_refused_is_named(
        self, client: TestClient, engine: FakeEngine, body: dict[str, Any], param: str
    ) -> None:
        assert error_of(client.post(PATH, json={"prompt": "a", **body}), 400)["param"] == param
        assert engine.requests == []

    def test_settings_can_be_sent_back(self, client: TestClient, engine: FakeEngine) -> None:
        settings = client.get("/props").json()["default_generation_settings"]["params"]
        response = client.post(PATH, json={"prompt": "a", **settings})
        assert response.status_code == 200, response.text
        ask(client)
        first, second = engine.requests
        assert first == second


class TestLimits:
    def write(self, engine: FakeEngine, *texts: str, forever: bool = False) -> None:
        def script(_: FakeEngine, handle: RequestHandle) -> None:
            for i, text in enumerate(texts):
                handle.push(TextEvent(0, text, i + 1))
            deadline = time.monotonic() + 10
            while forever and not handle.cancelled and time.monotonic() < deadline:
                handle.push(TextEvent(0, "b\n", 9))
                time.sleep(0.002)
            error = Cancelled("gone") if handle.cancelled else None
            if error is None:
                handle.push(FinishEvent(0, "stop"))
            handle.push(DoneEvent(Usage(1, 1, CachedBySource(), len(texts)), error))

        engine.script = script

    @pytest.mark.parametrize(
        ("texts", "shown"),
        [
            (["x\n    y\n", "  z"], "x\n    y\n  "),
            (["x\n    y\n", "z"], "x\n    y\n"),
            (["x\n    y\n\n    z"], "x\n    y\n"),
            (["x\n", " ", " ", " ", " ", "y", "\n", "\t", "z"], "x\n    y\n\t"),
        ],
        ids=["too few", "none", "an empty line", "token by token"],
    )
    def test_a_line_with_fewer_blanks_ends_it(
        self, client: TestClient, engine: FakeEngine, texts: list[str], shown: str
    ) -> None:
        self.write(engine, *texts, forever=True)
        said = ask(client, n_indent=4)
        assert (said["content"], said["stop_type"]) == (shown, "limit")
        assert said["has_new_line"]
        assert engine.handles[-1].cancelled
        parts = chunks(client, n_indent=4)
        assert "".join(part["content"] for part in parts) == shown
        assert parts[-1]["stop_type"] == "limit"

    def test_lines_with_enough_do_not(self, client: TestClient, engine: FakeEngine) -> None:
        self.write(engine, "x\n", "    y\n", "\t   z\n")
        said = ask(client, n_indent=4)
        assert (said["content"], said["stop_type"]) == ("x\n    y\n\t   z\n", "eos")
        assert not engine.handles[-1].cancelled

    def test_the_time_is_up_at_a_line_break(self, client: TestClient, engine: FakeEngine) -> None:
        self.write(engine, "a", forever=True)
        said = ask(client, t_max_predict_ms=1)
        assert said["content"].endswith("b\n")
        assert (said["stop_type"], said["truncated"]) == ("limit", False)
        assert engine.handles[-1].cancelled

    def test_no_time_is_no_limit(self, client: TestClient, engine: FakeEngine) -> None:
        for milliseconds in (0, -1, None):
            self.write(engine, *["a\n"] * 20)
            assert ask(client, t_max_predict_ms=milliseconds)["content"] == "a\n" * 20

    def test_other_replies_go_on(self, client: TestClient, engine: FakeEngine) -> None:
        def script(_: FakeEngine, handle: RequestHandle) -> None:
            handle.push(TextEvent(0, "a\nb", 2))
            handle.push(TextEvent(1, "a\n  b", 2))
            handle.push(FinishEvent(1, "stop"))
            handle.push(TextEvent(0, "c", 3))
            deadline = time.monotonic() + 10
            while not handle.cancelled and time.monotonic() < deadline:
                time.sleep(0.002)
            handle.push(DoneEvent(Usage(1, 1, CachedBySource(), 5), Cancelled("gone")))

        engine.script = script
        first, second = ask(client, n_indent=2, n=2)
        assert (first["content"], first["stop_type"], first["tokens_predicted"]) == ("a\n", "limit", 2)
        assert (second["content"], second["stop_type"], second["tokens_predicted"]) == ("a\n  b", "eos", 2)


class TestErrors:
    def test_a_prompt_that_is_too_long(self, client: TestClient, engine: FakeEngine) -> None:
        engine.refuses = ContextLengthExceeded(101, 100)
        for path in (PATH, "/completions"):
            error = error_of(client.post(path, json={"prompt": "a"}), 400, "exceed_context_size_error")
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (101, 100)

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    def test_it_has_the_same_type_beside_openais_code(
        self, client: TestClient, engine: FakeEngine, path: str, stream: bool
    ) -> None:
        engine.refuses = ContextLengthExceeded(101, 100)
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": stream}
        response = client.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "exceed_context_size_error")
        assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == (
            "context_length_exceeded",
            101,
            100,
        )

    def test_the_other_types(self, client: TestClient, engine: FakeEngine) -> None:
        engine.refuses = QueueFull(9, 7)
        response = client.post(PATH, json={"prompt": "a"})
        error_of(response, 503, "unavailable_error")
        assert response.headers["retry-after"] == "7"
        engine.refuses = EngineFailed("ill")
        error_of(client.post(PATH, json={"prompt": "a"}), 500, "server_error")
        engine.refuses = RuntimeError("secret")
        assert (
            "secret" not in error_of(client.post(PATH, json={"prompt": "a"}), 500, "server_error")["message"]
        )
        error_of(client.get(PATH), 405)
        error_of(client.post(PATH, content=b"{", headers={"content-type": "application/json"}), 400)
        error_of(client.post(PATH, content=b"{}", headers={"content-type": "text/plain"}), 415)

    def test_in_the_middle_of_a_stream(self, client: TestClient, engine: FakeEngine) -> None:
        def late(engine: FakeEngine, handle: RequestHandle) -> None:
            handle.push(TextEvent(0, "so far", 1))
            time.sleep(0.2)  # the stream must have begun
            handle.push(DoneEvent(Usage(), EngineFailed("ill")))

        engine.script = late
        first, last = chunks(client)
        assert first["content"] == "so far"
        assert last == {"error": {"code": 500, "message": "ill", "type": "server_error"}}

    def test_a_key_is_needed_where_there_are_keys(self, engine: FakeEngine) -> None:
        client = TestClient(fake_app(engine, api_keys=["anna=first"]))
        posted = (
            "/completion",
            "/completions",
            "/infill",
            "/tokenize",
            "/detokenize",
            "/apply-template",
            "/props",
        )
        for path in (*posted, "/slots/0?action=save"):
            error_of(client.post(path, json={"prompt": "a"}), 401, "authentication_error")
        for path in ("/props", "/slots", "/lora-adapters"):
            error_of(client.get(path), 401, "authentication_error")
        response = client.post(PATH, json={"prompt": "a"}, headers={"Authorization": "Bearer first"})
        assert response.status_code == 200
        assert engine.requests[0].namespace == "4:anna0:"
        for path in ("/health", "/v1/health"):
            assert client.get(path).status_code == 200
