"""A look-alike of the Hugging Face Hub, as far as huggingface_hub and `pull` use it, that can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" * 6 + "abcd"


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    host: str  # "hub" or "cdn"
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Behaviour:
    """What it serves and how. Change it while it runs."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    serve_instead: dict[str, bytes] = field(default_factory=dict)  # of the same length: changed on the way
    cuts: list[int] = field(default_factory=list)  # each answer with a body ends after so many bytes of it
    refuse: list[int] = field(default_factory=list)  # status codes for the next answers with a body
    knows_ranges: bool = True
    token: str | None = None  # without it: 401
    gated: bool = False
    commit: str = COMMIT
    etag: str | None = None  # instead of a file's checksum
    requests: list[Seen] = field(default_factory=list)

    def bodies(self) -> list[Seen]:
        """The requests for the files themselves."""
        return [one for one in self.requests if one.method == "GET" and one.host == "cdn"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def hub_server(behaviour: Behaviour) -> Iterator[str]:
    """Its address. Files come from another port, as the real one's come from another host."""
    with _running(behaviour, "cdn", "") as cdn, _running(behaviour, "hub", cdn) as hub:
        yield hub


@contextmanager
def _running(behaviour: Behaviour, host: str, cdn: str) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"behaviour": behaviour, "host": host, "cdn": cdn})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour
    host: str
    cdn: str

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        b = self.behaviour
        path = self.path.partition("?")[0]
        b.requests.append(
            Seen(self.host, self.command, path, self.headers["Range"], self.headers["Authorization"])
        )
        if self.host == "cdn":
            self._file(path.removeprefix("/"))
            return
        if b.token is not None and self.headers["Authorization"] != f"Bearer {b.token}":
            code = "GatedRepo" if b.gated else "RepoNotFound"
            self._send(403 if b.gated else 401, {"X-Error-Code": code, "X-Error-Message": "no"})
            return
        about = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/[^/]+)?", path)
        where = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = b.repos.get((about or where or {1: ""})[1])
        if repo is None:
            self._send(404, {"X-Error-Code": "RepoNotFound"})
        elif about:
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(self._about(about[1], repo)).encode()
            )
        elif where and where[3] not in repo:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": b.commit})
        elif where:
            content = repo[where[3]]
            name = b.etag or sha256(content)
            self._send(
                302,
                {
                    "Location": f"{self.cdn}/{where[1]}/{where[3]}",
                    "X-Repo-Commit": b.commit,
                    "X-Linked-Etag": f'"{name}"',
                    "X-Linked-Size": str(len(content)),
                    "ETag": f'"{name}"',
                },
            )

    def _about(self, name: str, repo: dict[str, bytes]) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = [{"rfilename": "README.md", "size": 5, "blobId": "0" * 40}]
        siblings += [
            {
                "rfilename": file,
                "size": len(content),
                "blobId": "1" * 40,
                "lfs": {"sha256": sha256(content), "size": len(content), "pointerSize": 130},
            }
            for file, content in repo.items()
        ]
        return {"_id": "x", "id": name, "modelId": name, "sha": self.behaviour.commit, "siblings": siblings}

    def _file(self, path: str) -> None:
        b = self.behaviour
        if b.refuse:
            self._send(b.refuse.pop(0), {})
            return
        owner, name, file = path.split("/", 2)
        content = b.serve_instead.get(file, b.repos[f"{owner}/{name}"][file])
        start = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if start and b.knows_ranges:
            at = int(start[1])
            head = {"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"}
            self._send(206, head, content[at:], cut=True)
        else:
            self._send(200, {}, content, cut=True)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"", *, cut: bool = False) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut and self.behaviour.cuts:
            self.wfile.write(body[: self.behaviour.cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass
