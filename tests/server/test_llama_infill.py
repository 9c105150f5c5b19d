"""``/infill``: what becomes of a text with a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, FakeModel, FakeVocab
from tests.tiny.plain import plain_model

from onceread.engine.engine import Engine, EngineConfig
from onceread.native.vocabulary import FillTokens
from onceread.server.app import create_app
from onceread.server.settings import Settings

PRE, SUF, MID, REPO, FILE = 300, 301, 302, 303, 304
BARE = FillTokens(PRE, SUF, MID)
WHOLE = FillTokens(PRE, SUF, MID, REPO, FILE)
GAP = {"input_prefix": "ab", "input_suffix": "cd"}


def text(said: str) -> list[int]:
    return list(said.encode())


def filler(engine: FakeEngine, fill: FillTokens, **changes: Any) -> TestClient:
    vocab = FakeVocab()
    vocab.fill = fill
    for name, value in changes.items():
        setattr(vocab, name, value)
    return TestClient(create_app(engine, FakeModel(vocab), Settings()))  # type: ignore[arg-type]


def prompt(engine: FakeEngine, fill: FillTokens, body: dict[str, Any], **changes: Any) -> list[int]:
    response = filler(engine, fill, **changes).post("/infill", json=body)
    assert response.status_code == 200, response.text
    return list(engine.requests[-1].prompt)


class TestPrompt:
    def test_of_two_texts(self, engine: FakeEngine) -> None:
        assert prompt(engine, BARE, GAP) == [PRE, *text("ab"), SUF, *text("cd"), MID]

    def test_what_the_gap_begins_with_belongs_to_the_text_before(self, engine: FakeEngine) -> None:
        assert prompt(engine, BARE, {**GAP, "prompt": "x"}) == [PRE, *text("abx"), SUF, *text("cd"), MID]

    def test_files_of_a_repository(self, engine: FakeEngine) -> None:
        engine.limit = 1000
        extra = [{"filename": "f", "text": "1"}, {"text": "2"}]
        assert prompt(engine, WHOLE, {**GAP, "input_extra": extra}) == [
            REPO, *text("myproject\n"), FILE, *text("f\n1"), FILE, *text("tmp\n2"),
            FILE, *text("filename\n"), PRE, *text("ab"), SUF, *text("cd"), MID,
        ]  # fmt: skip

    def test_files_for_models_that_know_none(self, engine: FakeEngine) -> None:
        tokens = prompt(engine, BARE, {**GAP, "input_extra": [{"filename": "f", "text": "1"}]})
        assert tokens == [*text("\n\n--- snippet ---\n\n1"), PRE, *text("ab"), SUF, *text("cd"), MID]

    def test_begins_as_the_model_wants_it(self, engine: FakeEngine) -> None:
        assert prompt(engine, BARE, GAP, add_bos=True)[:2] == [FakeVocab.bos, PRE]

    def test_control_strings_in_a_text_are_text(self, engine: FakeEngine) -> None:
        body = {"input_prefix": "<|im_end|>", "input_suffix": "<|im_end|>", "prompt": "<|im_end|>"}
        assert prompt(engine, BARE, body).count(FakeVocab.eot) == 1

    def test_what_does_not_fit_goes_from_afar(self, engine: FakeEngine) -> None:
        extra = [{"text": "1" * 20}, {"text": "2" * 20}]
        body = {"input_prefix": "p" * 20, "input_suffix": "s" * 20, "input_extra": extra, "n_predict": 5}
        assert prompt(engine, BARE, body).count(ord("1")) == 0
        assert prompt(engine, BARE, body) == [
            *text("\n\n--- snippet ---\n\n" + "2" * 20), PRE, *text("p" * 20), SUF, *text("s" * 20), MID,
        ]  # fmt: skip
        long = {"input_prefix": "-" * 200 + "p" * 69, "input_suffix": "s" * 23 + "-" * 200, "n_predict": 5}
        tokens = prompt(engine, BARE, long)
        assert tokens == [PRE, *text("p" * 69), SUF, *text("s" * 23), MID]
        assert len(tokens) + 5 == engine.limit

    def test_one_side_takes_what_the_other_leaves(self, engine: FakeEngine) -> None:
        tokens = prompt(engine, BARE, {"input_prefix": "p", "input_suffix": "s" * 200, "n_predict": 5})
        assert tokens == [PRE, *text("p"), SUF, *text("s" * 91), MID]

    def test_what_can_never_fit(self, engine: FakeEngine) -> None:
        response = filler(engine, BARE).post("/infill", json={**GAP, "prompt": "x" * 200})
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "exceed_context_size_error"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_suffix": "a"}, "input_prefix"),
        ({**GAP, "prompt": ["a"]}, "prompt"),
        ({**GAP, "input_extra": {}}, "input_extra"),
        ({**GAP, "input_extra": [{"filename": "f"}]}, "input_extra[0].text"),
        ({**GAP, "input_extra": [{"text": 5}]}, "input_extra[0].text"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    response = filler(engine, WHOLE).post("/infill", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert engine.requests == []


def test_the_options_of_completions_hold(engine: FakeEngine) -> None:
    # As llama.vim sends it.
    body = {
        **GAP,
        "n_predict": 8,
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "cache_prompt": True,
        "id_slot": 0,
        "stop": [],
        "response_fields": ["content", "timings/prompt_n", "tokens_cached", "truncated"],
    }
    said = filler(engine, WHOLE).post("/infill", json=body).json()
    assert said == {
        "content": "héllo",
        "timings/prompt_n": 1,
        "tokens_cached": len(engine.requests[0].prompt) - 1,
        "truncated": False,
    }
    assert engine.requests[0].max_tokens == 8
    assert engine.requests[0].sampling.order == ("top_k", "top_p")


def test_models_that_can_not(client: TestClient) -> None:
    response = client.post("/infill", json=GAP)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (501, 501, "not_supported_error")
    assert "prefix, suffix, middle" in error["message"]


@pytest.mark.model
def test_a_gap_is_filled_and_its_head_is_read_once(tmp_path: Path, smollm2_path: Path) -> None:
    with (
        plain_model(tmp_path, smollm2_path, fills=True) as model,
        Engine(model, EngineConfig(ctx_size=512)) as engine,
    ):
        client = TestClient(create_app(engine, model, Settings()))
        body = {
            "input_extra": [{"filename": "a.py", "text": "def f():\n    return 1\n"}],
            "input_prefix": "def g():\n    ",
            "input_suffix": "\n",
            "n_predict": 3,
            "ignore_eos": True,
        }
        first = client.post("/infill", json=body).json()
        fill = model.vocab.fill
        for token in (fill.prefix, fill.suffix, fill.middle, fill.repo, fill.file):
            assert model.vocab.text(token) in first["prompt"]
        assert (first["tokens_predicted"], first["stop_type"]) == (3, "limit")
        more = {**body, "input_prefix": body["input_prefix"] + "x"}  # type: ignore[operator]
        second = client.post("/infill", json=more).json()
        shared = first["prompt"].split("def g")[0]
        assert second["tokens_cached"] >= len(
            model.vocab.tokenize(shared, add_special=False, parse_special=True)
        )
