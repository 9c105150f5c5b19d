"""Health, models, metrics, documentation, CORS."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, FakeModel, fake_app

from onceread.chat.errors import TemplateUnusable
from onceread.server.app import app_state, create_app
from onceread.server.settings import Settings

TEXT = "/v1/completions"
OFF = {"memory": "off", "disk": "off"}


class TestHealth:
    def test_ok(self, client: TestClient) -> None:
        response = client.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok", "cache": OFF})

    def test_from_loading_to_serving(self) -> None:
        app = create_app(None, None, Settings())
        client = TestClient(app)
        response = client.get("/health")
        assert (response.status_code, response.json()) == (503, {"status": "loading"})
        response = client.post(TEXT, json={"prompt": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        assert response.headers["retry-after"]
        assert client.get("/metrics").status_code == 200
        app_state(app).serve(FakeEngine(), FakeModel())  # type: ignore[arg-type]
        assert client.get("/health").json() == {"status": "ok", "cache": OFF}
        assert client.post(TEXT, json={"prompt": "a"}).status_code == 200

    def test_failed_to_load(self) -> None:
        app = create_app(None, None, Settings())
        app_state(app).fail("the file is broken")
        client = TestClient(app)
        response = client.get("/health")
        assert (response.status_code, response.json()) == (
            503,
            {"status": "failed", "detail": "the file is broken"},
        )
        error = client.post(TEXT, json={"prompt": "a"}).json()["error"]
        assert error["code"] == "model_failed"
        assert "the file is broken" in error["message"]

    def test_failed_later(self, client: TestClient, engine: FakeEngine) -> None:
        engine.state, engine.failure = "failed", "out of memory"
        assert client.get("/health").json() == {"status": "failed", "detail": "out of memory"}
        assert client.post(TEXT, json={"prompt": "a"}).status_code == 503

    def test_shutting_down(self) -> None:
        app = fake_app()
        app_state(app).close()
        response = TestClient(app).post(TEXT, json={"prompt": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")


def test_a_chat_template_that_is_not_there() -> None:
    with pytest.raises(TemplateUnusable, match="no chat template"):
        fake_app(chat_template="nowhere.jinja")


class TestModels:
    def test_list(self, client: TestClient) -> None:
        body = client.get("/v1/models").json()
        assert body["object"] == "list"
        (card,) = body["data"]
        assert (card["id"], card["object"], card["context_length"]) == ("fake", "model", 100)

    def test_one(self, client: TestClient) -> None:
        assert client.get("/v1/models/fake").json() == client.get("/v1/models").json()["data"][0]

    @pytest.mark.parametrize("name", ["other", "a/b", "%00", "fake/"])
    def test_another(self, client: TestClient, name: str) -> None:
        response = client.get(f"/v1/models/{name}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")

    def test_a_name_of_the_operators(self) -> None:
        client = TestClient(fake_app(model_name="org/mine"))
        assert client.get("/v1/models/org/mine").json()["id"] == "org/mine"
        assert client.post(TEXT, json={"prompt": "a", "model": "gpt-4o"}).json()["model"] == "org/mine"


def test_metrics(client: TestClient) -> None:
    assert client.post(TEXT, json={"prompt": "a"}).status_code == 200
    client.get("/never/heard/of")
    client.request("BREW", "/health")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        "onceread_requests_total 1.0",
        "onceread_cells_total 100.0",
        "onceread_time_to_first_token_seconds_count 1.0",
        'onceread_http_requests_total{method="POST",route="/v1/completions",status="200"} 1.0',
        'onceread_http_requests_total{method="GET",route="other",status="404"} 1.0',
    ):
        assert line in lines
    assert "never/heard/of" not in response.text
    assert "BREW" not in response.text


class TestDocs:
    def test_needs_no_internet(self, client: TestClient) -> None:
        page = client.get("/docs").text
        assert "https://" not in page
        for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
            assert f"/docs/{name}" in page
            assert len(client.get(f"/docs/{name}").content) > 100

    @pytest.mark.parametrize("name", ["main.py", "..%2fmain.py", "%2e%2e/main.py"])
    def test_shows_nothing_else(self, client: TestClient, name: str) -> None:
        assert client.get(f"/docs/{name}").status_code == 404

    def test_the_document_is_whole(self, client: TestClient) -> None:
        document = client.get("/openapi.json").json()
        text = client.get("/openapi.json").text
        schemas = document["components"]["schemas"]
        used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
        assert used <= set(schemas)
        assert "422" not in text
        assert "securitySchemes" not in document["components"]

    def test_the_document_says_that_a_key_is_needed(self) -> None:
        document = TestClient(fake_app(api_keys=["secret"])).get("/openapi.json").json()
        assert document["paths"]["/v1/completions"]["post"]["security"] == [{"ApiKey": []}]
        assert "security" not in document["paths"]["/health"]["get"]


ORIGIN = {"Origin": "http://page.example"}


class TestCors:
    def test_is_off(self, client: TestClient) -> None:
        assert "access-control-allow-origin" not in client.get("/health", headers=ORIGIN).headers

    def test_can_be_on(self) -> None:
        client = TestClient(fake_app(cors_origins=["http://page.example"]))
        for path in ("/health", "/nowhere"):
            response = client.get(path, headers=ORIGIN)
            assert response.headers["access-control-allow-origin"] == "http://page.example"
        other = client.get("/health", headers={"Origin": "http://other.example"})
        assert "access-control-allow-origin" not in other.headers
