"""The cache over HTTP: what it shows, what it keeps, what it forgets, and to whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.server.cached import TOKEN_BYTES, CachedEngine
from tests.server.fakes import FakeEngine, fake_app
from tests.server.live import serving

from onceread.engine.request import DoneEvent, RequestHandle, Usage

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You keep a lighthouse."}
QUESTION = {"role": "user", "content": "Who was first?"}

ANNA = {"Authorization": "Bearer a-secret"}
BEN = {"Authorization": "Bearer b-secret"}
ADMIN = {"Authorization": "Bearer root"}


@pytest.fixture
def cached() -> CachedEngine:
    return CachedEngine()


@pytest.fixture
def client(cached: CachedEngine) -> TestClient:
    """Without keys."""
    return TestClient(fake_app(cached), raise_server_exceptions=False)


@pytest.fixture
def keyed(cached: CachedEngine) -> TestClient:
    """Anna, Ben and an admin."""
    app = fake_app(cached, api_keys=["anna=a-secret", "ben=b-secret"], admin_key="root")
    return TestClient(app, raise_server_exceptions=False)


def read(client: TestClient, prompt: str, headers: dict[str, str] | None = None, salt: str = "") -> None:
    body = {"prompt": prompt, "max_tokens": 0, "cache_salt": salt}
    assert client.post(TEXT, json=body, headers=headers).status_code == 200


def texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return sorted(path["text"] for path in response.json()["paths"])


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    assert set(found) >= {"message", "type", "param", "code"}
    return found


class TestOverview:
    def test_counts_what_is_stored(self, client: TestClient) -> None:
        read(client, "a lighthouse")
        body = client.get("/cache").json()
        memory = body["tiers"]["memory"]
        assert (memory["state"], memory["chunks"], memory["tokens"]) == ("ok", 1, 12)
        assert 12 * TOKEN_BYTES <= memory["bytes"] <= memory["budget_bytes"] == 2**26
        assert body["tiers"]["disk"]["state"] == body["tiers"]["shared"]["state"] == "off"
        assert body["context"] == {"cells": 100, "used": 0, "residents": 0}
        assert body["prompt_tokens"]["by_source"]["memory"] == 0
        assert (body["exported_chunks"], body["unwritten_bytes"], body["detail"]) == (1, 0, None)

    def test_says_why_there_is_none(self) -> None:
        client = TestClient(fake_app(FakeEngine(), cache_ram=0, no_disk_cache=True))
        body = client.get("/cache").json()
        assert body["tiers"]["memory"]["state"] == "off"
        assert body["detail"] == "the server was started with --cache-ram 0"
        assert "this kind of model" in TestClient(fake_app(FakeEngine())).get("/cache").json()["detail"]

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("GET", "/cache/tree", None),
            ("GET", "/cache/pins", None),
            ("POST", "/cache/pin", {"name": "x", "id": "abcdef"}),
            ("DELETE", "/cache/pin/abcdef", None),
            ("POST", "/cache/warm", {"prompt": "a"}),
        ],
    )
    def test_nothing_else_works_then(self, method: str, path: str, body: Any) -> None:
        client = TestClient(fake_app(FakeEngine()))
        found = error(client.request(method, path, json=body), 404)
        assert found["code"] == "cache_off"
        assert "this kind of model" in found["message"]

    @pytest.mark.parametrize("path", ["/cache", "/cache/tree", "/cache/pins"])
    def test_needs_a_key_where_there_are_keys(self, keyed: TestClient, path: str) -> None:
        assert error(keyed.get(path), 401)["code"] == "invalid_api_key"
        assert keyed.get(path, headers=BEN).status_code == 200


class TestTree:
    def test_shows_a_path(self, client: TestClient) -> None:
        read(client, "a lighthouse")
        (path,) = client.get("/cache/tree").json()["paths"]
        assert (path["tokens"], path["own_tokens"], path["text"]) == (12, 12, "a lighthouse")
        assert (path["tiers"], path["hits"], path["pins"], path["model"]) == (
            ["memory"],
            1,
            [],
            "fake f16/f16",
        )
        assert path["last_used"].endswith("Z")
        assert len(path["last_used"]) == len("2024-02-29T12:00:00Z")

    def test_pages(self, client: TestClient) -> None:
        for prompt in ("one", "two", "six"):
            read(client, prompt)
        found, after, pages = [], None, 0
        while pages == 0 or after is not None:
            query = {"limit": 2, **({"after": after} if after else {})}
            page = client.get("/cache/tree", params=query).json()
            assert page["total"] == 3
            found += [path["text"] for path in page["paths"]]
            after = page["next"]
            pages += 1
        assert (sorted(found), pages) == (["one", "six", "two"], 2)

    def test_everyone_sees_their_own(self, keyed: TestClient) -> None:
        read(keyed, "annas", ANNA)
        read(keyed, "annas salted", ANNA, salt="s")
        read(keyed, "bens", BEN)
        read(keyed, "admins", ADMIN)
        assert texts(keyed.get("/cache/tree", headers=ANNA)) == ["annas"]
        assert texts(keyed.get("/cache/tree?cache_salt=s", headers=ANNA)) == ["annas salted"]
        assert texts(keyed.get("/cache/tree?cache_salt=s", headers=BEN)) == []
        assert texts(keyed.get("/cache/tree", headers=ADMIN)) == ["admins", "annas", "annas salted", "bens"]
        assert texts(keyed.get("/cache/tree?key=anna", headers=ADMIN)) == ["annas"]
        assert texts(keyed.get("/cache/tree?key=anna&cache_salt=s", headers=ADMIN)) == ["annas salted"]
        assert texts(keyed.get("/cache/tree?key=nobody", headers=ADMIN)) == []

    def test_without_keys_salts_still_hide(self, client: TestClient) -> None:
        read(client, "salted", salt="s")
        assert texts(client.get("/cache/tree")) == []
        assert texts(client.get("/cache/tree?cache_salt=s")) == ["salted"]

    def test_only_an_admin_names_other_keys(self, keyed: TestClient) -> None:
        for path in ("/cache/tree?key=anna", "/cache/tree?key=ben", "/cache/pins?key=anna"):
            assert error(keyed.get(path, headers=BEN), 403)["code"] == "admin_required"

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("cache_salt=" + "x" * 257, "cache_salt"),
            ("after=" + "x" * 201, "after"),
        ],
        ids=["none", "too many", "no number", "long salt", "long after"],
    )
    def test_a_wrong_query_is_named(self, client: TestClient, query: str, param: str) -> None:
        found = error(client.get(f"/cache/tree?{query}"), 400)
        assert found["param"] == param
        assert found["message"].startswith(f"{param}: ")

    def test_whose_salt_must_be_said_by_an_admin(self, keyed: TestClient) -> None:
        assert error(keyed.get("/cache/tree?cache_salt=s", headers=ADMIN), 400)["param"] == "cache_salt"


class TestWarm:
    def test_messages_are_the_beginning_of_any_chat_that_begins_so(
        self, client: TestClient, cached: CachedEngine
    ) -> None:
        answer = client.post("/cache/warm", json={"messages": [SYSTEM]})
        assert answer.status_code == 200
        assert answer.json()["stored"] is True
        warmed = cached.requests[-1]
        assert (warmed.max_tokens, warmed.alignable) == (0, True)
        assert answer.json()["usage"]["prompt_tokens"] == len(warmed.prompt)
        assert answer.json()["timings"]["prompt_n"] >= 1
        client.post(CHAT, json={"messages": [SYSTEM, QUESTION]})
        assert cached.requests[-1].prompt[: len(warmed.prompt)] == warmed.prompt

    def test_raw_prompts(self, client: TestClient, cached: CachedEngine) -> None:
        assert client.post("/cache/warm", json={"prompt": "<|im_start|>a"}).json()["stored"]
        assert cached.requests[-1].prompt == (257, 97)
        assert client.post("/cache/warm", json={"prompt": [257, 98]}).json()["stored"]
        assert not cached.requests[-1].alignable
        assert len(client.get("/cache/tree").json()["paths"]) == 2

    def test_in_ones_own_namespace(self, keyed: TestClient) -> None:
        body = {"prompt": "secret", "cache_salt": "s"}
        assert keyed.post("/cache/warm", json=body, headers=ANNA).status_code == 200
        assert texts(keyed.get("/cache/tree?cache_salt=s", headers=ANNA)) == ["secret"]
        assert texts(keyed.get("/cache/tree", headers=ANNA)) == []
        assert error(keyed.post("/cache/warm", json={**body, "key": "anna"}, headers=BEN), 403)
        assert keyed.post("/cache/warm", json={"prompt": "gift", "key": "ben"}, headers=ADMIN).is_success
        assert texts(keyed.get("/cache/tree", headers=BEN)) == ["gift"]

    def test_where_a_known_path_spells_it_otherwise(self, client: TestClient, cached: CachedEngine) -> None:
        """The engine reads it by that path; the answer must not wait for tokens that nobody will store."""
        read(client, "known way")

        def aligned(engine: FakeEngine, handle: RequestHandle) -> None:
            handle.push(DoneEvent(Usage(5, 1)))

        cached.script = aligned
        known = cached.store.match_text
        waited: list[Any] = []
        cached.wait_remembered = lambda *_: bool(waited.append(1))  # type: ignore[method-assign]
        assert client.post("/cache/warm", json={"prompt": "known"}).json()["stored"] is True
        assert len(waited) == 1
        assert known("7:default0:", b"known") is not None

    def test_what_finds_no_room_is_not_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onceread.server.reading.STORED_WITHIN", 0.3)
        client = TestClient(fake_app(CachedEngine(memory=20 * TOKEN_BYTES)))
        assert client.post("/cache/warm", json={"prompt": "x" * 90}).json()["stored"] is False
        refused = error(client.post("/cache/pin", json={"prompt": "x" * 90, "name": "n"}), 409)
        assert refused["code"] == "pin_refused"
        assert "90 tokens" in refused["message"]

    @pytest.mark.parametrize(
        ("body", "param", "code"),
        [
            ({}, "prompt", "missing_required_parameter"),
            ({"prompt": None, "messages": None}, "prompt", "missing_required_parameter"),
            ({"prompt": "a", "messages": [SYSTEM]}, "messages", "missing_required_parameter"),
            ({"prompt": []}, "prompt", "invalid_type"),
            ({"prompt": ["a"]}, "prompt", "invalid_type"),
            ({"prompt": [True]}, "prompt", "invalid_type"),
            ({"prompt": [259]}, "prompt", "invalid_value"),
            ({"prompt": [-1]}, "prompt", "invalid_value"),
            ({"messages": []}, "messages", "invalid_value"),
            ({"messages": [{"role": "user"}]}, "messages[0]", "missing_required_parameter"),
            ({"messages": [SYSTEM], "tools": [{}]}, "tools[0].type", "missing_required_parameter"),
            ({"messages": [SYSTEM], "chat_template_kwargs": {"tools": []}}, "messages", "invalid_value"),
            ({"prompt": "a", "cache_salt": "x" * 257}, "cache_salt", "invalid_value"),
            ({"prompt": "a", "key": ""}, "key", "invalid_value"),
            ([], None, "invalid_type"),
        ],
    )
    def test_wrong_bodies(
        self, client: TestClient, cached: CachedEngine, body: Any, param: str | None, code: str
    ) -> None:
        found = error(client.post("/cache/warm", json=body), 400)
        assert (found["param"], found["code"]) == (param, code)
        assert cached.requests == []

    def test_unknown_fields_are_told(self, client: TestClient) -> None:
        answer = client.post("/cache/warm", json={"prompt": "a", "temperature": 1})
        assert answer.headers["x-onceread-warning"] == "ignored parameters: temperature"

    def test_stops_when_the_client_goes(self, cached: CachedEngine) -> None:
        begun, gone = threading.Event(), threading.Event()

        def slow(engine: FakeEngine, handle: RequestHandle) -> None:
            handle.bind(gone.set)
            begun.set()
            gone.wait(10)
            handle.push(DoneEvent(Usage()))

        cached.script = slow
        with serving(fake_app(cached)) as url:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/cache/warm", json={"prompt": "a"}, timeout=2)
            assert begun.is_set()
            assert gone.wait(5)
        assert cached.handles[0].cancelled


class TestPins:
    def test_a_prompt_is_read_and_pinned(self, client: TestClient, cached: CachedEngine) -> None:
        pin = client.post("/cache/pin", json={"messages": [SYSTEM], "name": "keeper"}).json()
        assert (pin["name"], pin["tokens"]) == ("keeper", len(cached.requests[-1].prompt))
        assert pin["bytes"] == pin["tokens"] * TOKEN_BYTES
        assert client.get("/cache/pins").json() == {"pins": [pin]}
        assert client.get("/cache").json()["tiers"]["memory"]["pinned_bytes"] > 0
        assert client.get("/cache/tree").json()["paths"][0]["pins"] == ["keeper"]

    def test_a_stored_path_by_the_beginning_of_its_id(self, client: TestClient) -> None:
        read(client, "a lighthouse")
        (path,) = client.get("/cache/tree").json()["paths"]
        pin = client.post("/cache/pin", json={"id": path["id"][:6], "name": "n"}).json()
        assert pin["tokens"] == 12
        assert client.delete(f"/cache/pin/{pin['id'][:8]}").json()["deleted"] is True
        assert client.get("/cache/pins").json() == {"pins": []}

    def test_are_their_owners(self, keyed: TestClient) -> None:
        pin = keyed.post("/cache/pin", json={"prompt": "annas", "name": "n"}, headers=ANNA).json()
        (path,) = keyed.get("/cache/tree", headers=ANNA).json()["paths"]
        assert keyed.get("/cache/pins", headers=BEN).json() == {"pins": []}
        assert error(keyed.delete(f"/cache/pin/{pin['id']}", headers=BEN), 404)["code"] == "pin_unknown"
        foreign = keyed.post("/cache/pin", json={"id": path["id"], "name": "n"}, headers=BEN)
        assert error(foreign, 404)["code"] == "path_unknown"
        assert keyed.get("/cache/pins?cache_salt=s", headers=ANNA).json() == {"pins": []}
        assert keyed.get("/cache/pins", headers=ADMIN).json() == {"pins": [pin]}
        assert keyed.get("/cache/pins?key=anna", headers=ADMIN).json() == {"pins": [pin]}
        assert keyed.delete(f"/cache/pin/{pin['id']}", headers=ADMIN).status_code == 200
        assert keyed.get("/cache/pins", headers=ANNA).json() == {"pins": []}

    def test_are_listed_also_where_there_is_a_disk(self, tmp_path: Path) -> None:
        engine = CachedEngine(directory=tmp_path / "cache")
        client = TestClient(fake_app(engine))
        pin = client.post("/cache/pin", json={"prompt": "a lighthouse", "name": "n"}).json()
        assert [listed["id"] for listed in client.get("/cache/pins").json()["pins"]] == [pin["id"]]
        assert client.get("/cache/tree").json()["paths"][0]["pins"] == ["n"]
        assert client.get("/cache").json()["tiers"]["disk"]["pinned_bytes"] > 0
        assert client.delete(f"/cache/pin/{pin['id']}").status_code == 200
        assert client.get("/cache").json()["tiers"]["disk"]["pinned_bytes"] == 0
        engine.store.close()

    def test_one_that_can_not_fit_is_refused_with_the_figures(self) -> None:
        client = TestClient(fake_app(CachedEngine(memory=40 * TOKEN_BYTES)))
        refused = error(client.post("/cache/pin", json={"prompt": "x" * 37, "name": "n"}), 409)
        assert refused["code"] == "pin_refused"
        assert "37000 bytes" in refused["message"]
        assert "36000 bytes" in refused["message"]
        assert client.get("/cache/pins").json() == {"pins": []}

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"prompt": "a"}, "name"),
            ({"prompt": "a", "name": ""}, "name"),
            ({"prompt": "a", "name": " "}, "name"),
            ({"prompt": "a", "name": "a\x1b[2J"}, "name"),
            ({"prompt": "a", "name": "x" * 101}, "name"),
            ({"name": "n"}, "id"),
            ({"name": "n", "id": "abc"}, "id"),
            ({"name": "n", "id": "../../x"}, "id"),
            ({"name": "n", "id": "abcdef", "prompt": "a"}, "prompt"),
        ],
    )
    def test_wrong_bodies(self, client: TestClient, body: Any, param: str) -> None:
        assert error(client.post("/cache/pin", json=body), 400)["param"] == param

    def test_unknown_ids(self, client: TestClient) -> None:
        assert error(client.post("/cache/pin", json={"id": "abcdef", "name": "n"}), 404)["param"] == "id"
        assert error(client.delete("/cache/pin/abcdef"), 404)["code"] == "pin_unknown"
        assert error(client.delete("/cache/pin/not-hex"), 400)["param"] == "id"


class TestClear:
    def test_forgets_ones_own(self, keyed: TestClient) -> None:
        for headers in (ANNA, BEN):
            read(keyed, "something", headers)
        read(keyed, "salted", ANNA, salt="s")
        answer = keyed.post("/cache/clear", json={}, headers=ANNA)
        assert answer.json() == {"freed_bytes": 9 * TOKEN_BYTES}
        assert texts(keyed.get("/cache/tree", headers=ADMIN)) == ["salted", "something"]
        keyed.post("/cache/clear", json={"cache_salt": "s"}, headers=ANNA)
        assert texts(keyed.get("/cache/tree", headers=ADMIN)) == ["something"]
        assert keyed.post("/cache/clear", json={"key": "ben"}, headers=ADMIN).json()["freed_bytes"]
        assert texts(keyed.get("/cache/tree", headers=ADMIN)) == []

    def test_only_an_admin_clears_all(self, keyed: TestClient) -> None:
        read(keyed, "something", BEN)
        assert (
            error(keyed.post("/cache/clear", json={"all": True}, headers=ANNA), 403)["code"]
            == "admin_required"
        )
        assert keyed.post("/cache/clear", json={"all": True}, headers=ADMIN).json()["freed_bytes"]
        assert texts(keyed.get("/cache/tree", headers=BEN)) == []

    @pytest.mark.parametrize(
        ("settings", "allowed"),
        [({}, True), ({"admin_key": "root"}, False), ({"host": "0.0.0.0", "allow_open": True}, False)],
        ids=["on this machine, without keys", "with an admin key", "open to others"],
    )
    def test_without_api_keys(self, settings: dict[str, Any], allowed: bool) -> None:
        client = TestClient(fake_app(CachedEngine(), **settings))
        read(client, "salted", salt="s")
        assert client.post("/cache/clear", json={"all": True}).status_code == (200 if allowed else 403)

    def test_all_is_all(self, client: TestClient) -> None:
        assert (
            error(client.post("/cache/clear", json={"all": True, "cache_salt": "s"}), 400)["param"] == "all"
        )


class TestHealthAndMetrics:
    @pytest.fixture
    def on_disk(self, tmp_path: Path) -> Iterator[CachedEngine]:
        engine = CachedEngine(directory=tmp_path / "cache")
        yield engine
        engine.store.close()

    def test_both_tiers(self, on_disk: CachedEngine) -> None:
        client = TestClient(fake_app(on_disk))
        assert client.get("/health").json() == {"status": "ok", "cache": {"memory": "ok", "disk": "ok"}}

    def test_a_disk_that_does_not_answer(
        self, client: TestClient, cached: CachedEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onceread.server.cache_stats._PATIENCE", 0.1)
        answers = threading.Event()
        monkeypatch.setattr(cached.store, "stats", lambda: answers.wait(10))
        try:
            with client:  # one event loop for all requests, as in a real server
                for path in ("/health", "/cache", "/metrics"):
                    assert client.get(path).status_code == 200
                found = client.get("/health").json()
                answers.set()
        finally:
            answers.set()
        assert found == {
            "status": "ok",
            "cache": {"memory": "ok", "disk": "failed: it did not answer in 0.1 s"},
        }

    def test_while_too_many_wait_for_it(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onceread.server.threads._free", threading.Semaphore(0))
        assert error(client.get("/cache/tree"), 503)["code"] == "cache_busy"
        assert client.get("/health").json()["cache"]["disk"].startswith("failed: ")
        assert client.get("/metrics").status_code == 200

    def test_metrics(self, on_disk: CachedEngine) -> None:
        client = TestClient(fake_app(on_disk))
        read(client, "a lighthouse")
        assert on_disk.store.wait_written(10)
        text = client.get("/metrics").text
        lines = text.splitlines()
        for line in (
            'onceread_cache_up{tier="disk"} 1.0',
            'onceread_cache_up{tier="shared"} 0.0',
            f'onceread_cache_budget_bytes{{tier="memory"}} {2**26:.8g}'.replace("67108864", "6.7108864e+07"),
            'onceread_cache_tokens{tier="memory"} 12.0',
            'onceread_cache_tokens{tier="disk"} 12.0',
            'onceread_cache_chunks{tier="disk"} 1.0',
            'onceread_cache_hit_tokens_total{tier="disk"} 0.0',
            'onceread_cache_evictions_total{tier="memory"} 0.0',
            'onceread_cache_damaged_total{tier="disk"} 0.0',
            'onceread_cache_pinned_bytes{tier="disk"} 0.0',
            "onceread_cache_unwritten_bytes 0.0",
            "onceread_cache_oldest_unwritten_seconds 0.0",
            "onceread_cache_exported_chunks_total 1.0",
            "onceread_cache_refused_chunks_total 0.0",
            "onceread_cache_split_chunks_total 0.0",
            "onceread_cached_disk_total 0.0",
        ):
            assert line in lines
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(names) == len(set(names))

    def test_metrics_without_a_store(self) -> None:
        assert (
            'onceread_cache_up{tier="memory"} 0.0' in TestClient(fake_app(FakeEngine())).get("/metrics").text
        )
