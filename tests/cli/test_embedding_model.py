"""A model of its own for embeddings, from the command line."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.cli.test_command_line import complaint
from tests.cli.test_start_and_stop import served
from tests.tiny.encoder import TRAINED, WIDTH, write_encoder

pytestmark = [pytest.mark.model, pytest.mark.skipif(os.name != "posix", reason="signals")]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_encoder(path)
    return path


def test_it_is_announced_listed_and_used_beside_the_other(encoder: Path) -> None:
    with served("--no-disk-cache", "--embedding-model", str(encoder)) as server:
        said = "".join(server.ready().said)
        assert f"  embedding small ({WIDTH} numbers, from up to {TRAINED} tokens)\n" in said
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert [card["id"] for card in client.get("/v1/models").json()["data"]][1:] == ["small"]
            answer = client.post("/v1/embeddings", json={"input": "the cat"}).json()
            assert (answer["model"], len(answer["data"][0]["embedding"])) == ("small", WIDTH)
            reply = client.post("/v1/completions", json={"prompt": "The sky is", "max_tokens": 1}).json()
            assert reply["model"].startswith("SmolLM2")
        assert server.stop()[0] == 0


def test_stopping_while_it_embeds() -> None:
    with served("--no-disk-cache", "--shutdown-grace", "0") as server:
        url = server.ready().url

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(url + "/v1/embeddings", json={"input": [[100] * 500] * 200}, timeout=60)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while "onceread_embedding_waiting 2.0" not in httpx.get(url + "/metrics").text:
            time.sleep(0.05)
        status, _, err = server.stop()
        for thread in threads:
            thread.join(30)
        assert status == 0, err
        assert "Traceback" not in err


@pytest.mark.parametrize("flag", ["--embedding-model", "--model"])
def test_the_file_must_be_there(flag: str) -> None:
    assert complaint(flag, "/no/such.gguf") == (
        f"no such model file: /no/such.gguf; give the path of a GGUF file by {flag}"
    )


def test_a_reranker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.gguf"
    write_encoder(path, 4)
    line = complaint("--port", "0", "--no-disk-cache", "--embedding-model", str(path))
    assert line == "ranks is a reranker: it gives scores for pairs of texts, no embeddings"


def test_it_can_not_be_the_model_that_chats(encoder: Path) -> None:
    line = complaint("--port", "0", "--no-disk-cache", "--model", str(encoder))
    assert line == "small.gguf is an embedding model and can't write text; give it by --embedding-model"
