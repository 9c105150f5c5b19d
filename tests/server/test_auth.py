"""API keys, and the namespaces that they open."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, fake_app

KEYS = ["anna=first", "anna=second", "ben=third", "bare"]


@pytest.fixture
def keyed(engine: FakeEngine) -> TestClient:
    return TestClient(fake_app(engine, api_keys=KEYS))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        bearer("anna=first"),
        {"Authorization": "Basic first"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"x-api-key": "wrong"},
    ],
    ids=["none", "wrong", "empty", "with its name", "other scheme", "bytes", "other header"],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("GET", "/v1/models")])
def test_no_key_no_answer(keyed: TestClient, method: str, path: str, headers: dict[str, str]) -> None:
    response = keyed.request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/docs", "/openapi.json"])
def test_what_is_open_to_all(keyed: TestClient, path: str) -> None:
    assert keyed.get(path).status_code == 200


def namespace(
    client: TestClient, engine: FakeEngine, headers: dict[str, str], salt: str | None = None
) -> str:
    body = {"prompt": "a", "max_tokens": 1, "cache_salt": salt}
    assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
    return engine.requests[-1].namespace


def test_namespaces_follow_the_name(keyed: TestClient, engine: FakeEngine) -> None:
    anna = namespace(keyed, engine, bearer("first"))
    assert anna == namespace(keyed, engine, {"x-api-key": "second"})
    assert anna == namespace(keyed, engine, {"authorization": "bearer  first"})
    assert (
        len({anna, namespace(keyed, engine, bearer("third")), namespace(keyed, engine, bearer("bare"))}) == 3
    )


def test_a_bare_key_is_the_default_caller(keyed: TestClient, engine: FakeEngine) -> None:
    bare = namespace(keyed, engine, bearer("bare"))
    opened = FakeEngine()
    assert bare == namespace(TestClient(fake_app(opened)), opened, {})


def test_salts_isolate(keyed: TestClient, engine: FakeEngine) -> None:
    salts = [None, "a", "b", "4:anna"]
    found = {namespace(keyed, engine, bearer(key), salt) for key in ("first", "third") for salt in salts}
    assert len(found) == 8


def test_an_empty_salt_is_none(keyed: TestClient, engine: FakeEngine) -> None:
    assert namespace(keyed, engine, bearer("first"), "") == namespace(keyed, engine, bearer("first"))
