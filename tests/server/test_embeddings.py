"""Embeddings over HTTP, computed by tiny models; the engine that chats is a fake."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from openai.types import CreateEmbeddingResponse
from tests.server.fakes import FakeEngine, FakeModel
from tests.server.live import serving
from tests.tiny.encoder import TRAINED, WIDTH, write_encoder

from onceread.engine.embeddings import EmbeddingConfig, EmbeddingEngine
from onceread.engine.turns import Turns
from onceread.native.model import Model
from onceread.server.app import app_state, create_app
from onceread.server.embeddings import embed
from onceread.server.llama_embedding import scaled
from onceread.server.settings import Settings

PATH = "/v1/embeddings"
CAT, DOG = "the cat sat on a lamp", "a red dog"
Make = Callable[..., EmbeddingEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("encoder") / "small-encoder.gguf"
    write_encoder(path)
    with Model.load(path) as loaded:
        yield loaded


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def embeddings(model: Model, turns: Turns) -> Iterator[EmbeddingEngine]:
    with EmbeddingEngine(model, EmbeddingConfig(threads=2, queue_limit=1), turns) as engine:
        yield engine


def app_over(embeddings: EmbeddingEngine | None, **settings: Any) -> Any:
    return create_app(FakeEngine(), FakeModel(), Settings(**settings), embeddings)  # type: ignore[arg-type]


@pytest.fixture
def client(embeddings: EmbeddingEngine) -> TestClient:
    return TestClient(app_over(embeddings), raise_server_exceptions=False)


def vectors(response: Any) -> list[list[float]]:
    assert response.status_code == 200, response.text
    body = response.json()
    CreateEmbeddingResponse.model_validate(body, strict=True)
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    return [item["embedding"] for item in body["data"]]


def error(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


class TestShapes:
    def test_of_inputs_and_what_they_cost(self, client: TestClient, model: Model) -> None:
        tokens = model.vocab.tokenize(CAT, add_special=True, parse_special=True)
        (text,) = vectors(client.post(PATH, json={"input": CAT}))
        for same in ([CAT], tokens, [tokens]):
            response = client.post(PATH, json={"input": same, "model": "any", "user": "me"})
            assert np.allclose(vectors(response), [text], atol=1e-3)
            n = len(tokens)
            assert response.json()["usage"] == {"prompt_tokens": n, "total_tokens": n}
            assert response.json()["model"] == "small-encoder"
        cat, dog = vectors(client.post(PATH, json={"input": [CAT, DOG]}))
        assert np.allclose(cat, text, atol=1e-3)
        assert not np.allclose(dog, text, atol=0.05)
        assert np.linalg.norm(dog) == pytest.approx(1, abs=1e-5)

    def test_base64_is_the_same_numbers(self, client: TestClient) -> None:
        numbers = vectors(client.post(PATH, json={"input": [CAT, DOG], "encoding_format": "float"}))
        response = client.post(PATH, json={"input": [CAT, DOG], "encoding_format": "base64"})
        for plain, item in zip(numbers, response.json()["data"], strict=True):
            packed = np.frombuffer(base64.b64decode(item["embedding"], validate=True), "<f4")
            assert len(packed) == WIDTH
            assert np.array_equal(packed, np.array(plain, np.float32))

    def test_the_models_own_dimensions_may_be_named(self, client: TestClient) -> None:
        assert len(vectors(client.post(PATH, json={"input": CAT, "dimensions": WIDTH}))[0]) == WIDTH

    def test_unknown_parameters_are_named(self, client: TestClient) -> None:
        response = client.post(PATH, json={"input": CAT, "truncate": True})
        assert vectors(response)
        assert response.headers["x-onceread-warning"] == "ignored parameters: truncate"


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            pytest.param({}, "input", id="no input"),
            pytest.param({"input": None}, "input", id="null"),
            pytest.param({"input": ""}, "input", id="an empty text"),
            pytest.param({"input": []}, "input", id="an empty list"),
            pytest.param({"input": ["a", ""]}, "input", id="an empty text among others"),
            pytest.param({"input": [[]]}, "input", id="an empty list of tokens"),
            pytest.param({"input": ["a", [5]]}, "input", id="texts and tokens mixed"),
            pytest.param({"input": [True]}, "input", id="a truth value"),
            pytest.param({"input": [-1]}, "input", id="a negative token"),
            pytest.param({"input": [[5], [10**12]]}, "input", id="a token that is not there"),
            pytest.param({"input": ["a"] * 2049}, "input", id="too many"),
            pytest.param({"input": "a", "encoding_format": "int8"}, "encoding_format", id="another format"),
            pytest.param({"input": "a", "dimensions": WIDTH - 1}, "dimensions", id="fewer dimensions"),
            pytest.param({"input": "a", "dimensions": 0}, "dimensions", id="no dimensions"),
            pytest.param({"input": "a", "model": 5}, "model", id="a model that is no name"),
        ],
    )
    def test_name_what_is_wrong(self, client: TestClient, body: dict[str, Any], param: str) -> None:
        found = error(client.post(PATH, json=body))
        assert found["param"] == param
        assert found["type"] == "invalid_request_error"

    def test_of_long_inputs_have_the_figures(self, client: TestClient) -> None:
        found = error(client.post(PATH, json={"input": [[5], [5] * (TRAINED + 1)]}))
        assert (found["code"], found["param"]) == ("context_length_exceeded", "input")
        assert (found["n_prompt_tokens"], found["n_ctx"]) == (TRAINED + 1, TRAINED)
        assert "index 1" in found["message"]

    def test_where_there_is_nothing_that_embeds(self) -> None:
        client = TestClient(app_over(None))
        assert error(client.post(PATH, json={"input": CAT}), 501)["code"] == "unsupported_endpoint"

    def test_of_who_has_no_key(self, embeddings: EmbeddingEngine) -> None:
        client = TestClient(app_over(embeddings, api_keys=["secret"]))
        for path in (PATH, "/embedding", "/embeddings"):
            assert client.post(path, json={"input": CAT}).status_code == 401
            security = client.get("/openapi.json").json()["paths"][path]["post"]["security"]
            assert security == [{"ApiKey": []}]

    def test_by_a_model_that_ranks(self, tmp_path: Path) -> None:
        path = tmp_path / "reranker.gguf"
        write_encoder(path, 4)
        with Model.load(path) as model, EmbeddingEngine(model) as engine:
            for more in ({}, {"dimensions": 5}):
                found = error(TestClient(app_over(engine)).post(PATH, json={"input": CAT, **more}))
                assert "reranker" in found["message"]

    def test_of_a_full_queue(self, client: TestClient, embeddings: EmbeddingEngine, turns: Turns) -> None:
        embeddings.start()
        with turns:
            taken = [embeddings.submit([[5]]) for _ in range(2)]
            response = client.post(PATH, json={"input": CAT})
        assert error(response, 503)["code"] == "queue_full"
        assert response.headers["retry-after"] == "1"
        assert all(one.result(30) for one in taken)

    def test_while_it_shuts_down(self, embeddings: EmbeddingEngine) -> None:
        app = app_over(embeddings)
        app_state(app).close()
        assert error(TestClient(app).post(PATH, json={"input": CAT}), 503)["code"] == "shutting_down"

    def test_of_what_comes_after_closing(self, client: TestClient, embeddings: EmbeddingEngine) -> None:
        embeddings.close()
        assert error(client.post(PATH, json={"input": CAT}), 503)["code"] == "shutting_down"


def test_a_client_that_goes_stops_costing(embeddings: EmbeddingEngine, turns: Turns) -> None:
    embeddings.start()
    with serving(app_over(embeddings)) as url:
        with turns:  # nothing is computed until the client has gone
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url + PATH, json={"input": [[5] * 100] * 2000}, timeout=1)
            deadline = time.monotonic() + 10
            while not all(job.gone for job in list(embeddings._jobs)):
                assert time.monotonic() < deadline, "it is still wanted"
                time.sleep(0.01)
        assert vectors(httpx.post(url + PATH, json={"input": [5, 6]}))
    assert embeddings.stats().embedding_requests_total == 1
    assert embeddings.stats().embedding_tokens_total <= 102


def test_a_client_that_goes_while_its_text_is_tokenized(
    embeddings: EmbeddingEngine, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    submit, futures = embeddings.submit, []

    def prepare() -> list[Any]:
        began.set()
        assert go_on.wait(10)
        return [[5, 6]]

    def submit_seen(inputs: Any) -> Any:
        futures.append(submit(inputs))
        return futures[0]

    async def go() -> None:
        task = asyncio.create_task(embed(embeddings, prepare, "input"))
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    embeddings.start()
    monkeypatch.setattr(embeddings, "submit", submit_seen)
    with turns:  # nothing is computed
        asyncio.run(go())
        go_on.set()
        deadline = time.monotonic() + 10
        while not (futures and futures[0].cancelled()):
            assert time.monotonic() < deadline, "it is still wanted"
            time.sleep(0.01)
    assert submit([[5]]).result(30)


def test_many_clients_at_once(model: Model) -> None:
    with EmbeddingEngine(model, EmbeddingConfig(threads=2)) as engine, serving(app_over(engine)) as url:
        (expected,) = vectors(httpx.post(url + PATH, json={"input": CAT}))
        wrong: list[object] = []

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                for _ in range(15):
                    (found,) = vectors(client.post(PATH, json={"input": CAT}))
                    if not np.allclose(found, expected, atol=1e-3):
                        wrong.append(found)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert engine.stats().embedding_requests_total == 121


def test_the_models_and_metrics(client: TestClient) -> None:
    assert vectors(client.post(PATH, json={"input": CAT}))
    cards = client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["fake", "small-encoder"]
    assert cards[1]["context_length"] == TRAINED
    assert client.get("/v1/models/small-encoder").json() == cards[1]
    message = error(client.get("/v1/models/other"), 404)["message"]
    assert "'fake' and 'small-encoder'" in message
    lines = client.get("/metrics").text.splitlines()
    assert "onceread_embedding_requests_total 1.0" in lines
    assert "onceread_embedding_tokens_total 8.0" in lines


class TestAsLlamaServer:
    @pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
    def test_a_list_of_lists(self, client: TestClient, path: str) -> None:
        expected = vectors(client.post(PATH, json={"input": [CAT, DOG]}))
        response = client.post(path, json={"content": [CAT, DOG]})
        assert response.status_code == 200
        assert [item["index"] for item in response.json()] == [0, 1]
        for item, vector in zip(response.json(), expected, strict=True):
            assert np.allclose(item["embedding"], [vector], atol=1e-3)

    def test_content_is_needed(self, client: TestClient) -> None:
        assert error(client.post("/embedding", json={}))["param"] == "content"
        assert error(client.post("/embedding", json={"content": [[10**9]]}))["param"] == "content"

    @pytest.mark.parametrize(
        ("norm", "expected"),
        [(-1, [3, -4]), (0, [24570, -32760]), (1, [3 / 7, -4 / 7]), (2, [0.6, -0.8]), (100, [0.75, -1])],
    )
    def test_norms(self, norm: int, expected: list[float]) -> None:
        assert scaled(np.array([3, -4], np.float32), norm) == pytest.approx(expected, rel=1e-6)
        assert scaled(np.zeros(2, np.float32), norm).tolist() == [0, 0]

    def test_the_norm_that_was_asked_for(self, client: TestClient) -> None:
        (item,) = client.post("/embedding", json={"content": CAT, "embd_normalize": 1}).json()
        assert np.abs(item["embedding"][0]).sum() == pytest.approx(1, abs=1e-5)
        assert error(client.post("/embedding", json={"content": CAT, "embd_normalize": -2}))["param"]
