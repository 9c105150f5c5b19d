"""`Llama.from_pretrained` against a look-alike of the Hub: which files it finds, and where they end up."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from onceread import Llama
from onceread.library.errors import InvalidParameter
from onceread.library.pretrained import fetch

REPO = "keeper/lighthouse-GGUF"
COMMIT = "a" * 40
FILES = {
    "README.md": b"a model",
    "lighthouse-Q8_0.gguf": b"eight bits",
    "lighthouse-Q4_0.gguf": b"four bits",
    "big/part-00001-of-00002.gguf": b"one",
    "big/part-00002-of-00002.gguf": b"two",
}


class Hub(BaseHTTPRequestHandler):
    """Lists one repository, and gives its files."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{REPO}/tree/"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self._send(json.dumps(listed).encode(), {"Content-Type": "application/json"}, body)
            return
        name = path.removeprefix(f"/{REPO}/resolve/main/")
        if name in FILES:
            data = FILES[name]
            self._send(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, body)
        else:
            self.send_error(404)

    def _send(self, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_one_file_that_matches_is_downloaded_to_the_hubs_cache(tmp_path: Path) -> None:
    path = fetch(REPO, "*Q8_0.gguf", cache_dir=tmp_path)
    assert path.is_relative_to(tmp_path)
    assert path.name == "lighthouse-Q8_0.gguf"
    assert path.read_bytes() == b"eight bits"


def test_all_parts_of_a_split_model_lie_beside_each_other(tmp_path: Path) -> None:
    path = fetch(REPO, "big/*00001*", ["big/*00002-of*"], local_dir=tmp_path)
    assert path == tmp_path / "big" / "part-00001-of-00002.gguf"
    assert path.with_name("part-00002-of-00002.gguf").read_bytes() == b"two"


@pytest.mark.parametrize(
    ("filename", "more", "param", "says"),
    [
        pytest.param("*Q5*", None, "filename", "no file .* there are: README.md", id="none matches"),
        pytest.param("*.gguf", None, "filename", "4 files .* these", id="several match"),
        pytest.param("*Q8*", ["*Q7*"], "additional_files", "no file", id="no other part matches"),
    ],
)
def test_a_pattern_that_names_no_one_file_is_refused_with_what_there_is(
    tmp_path: Path, filename: str, more: list[str] | None, param: str, says: str
) -> None:
    with pytest.raises(InvalidParameter, match=says) as refused:
        fetch(REPO, filename, more, cache_dir=tmp_path)
    assert refused.value.param == param


def test_what_was_downloaded_is_loaded_with_the_parameters_that_were_given(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="not a GGUF file"):
        Llama.from_pretrained(REPO, "*Q8_0.gguf", cache_dir=tmp_path, verbose=False)
    with pytest.raises(InvalidParameter, match="numa"):
        Llama.from_pretrained(REPO, "*Q8_0.gguf", cache_dir=tmp_path, numa=True)
