"""The documentation: the site is built without a warning and asks nobody else for anything, and what it shows works."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from onceread.server.settings import Settings, field_meta
from tests.server.live import Live, live_server

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall((DOCS / page).read_text()) if found == language]


def commands(text: str) -> list[str]:
    """What a console block has the reader type, whole commands of several lines included."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(("$ ", "# ")):
            found.append(line[2:])
        elif found and (found[-1].count("'") % 2 or found[-1].endswith("\\")):
            found[-1] = f"{found[-1].removesuffix(chr(92))}\n{line}"
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class TestSite:
    def test_every_page_is_in_it(self, site: Path) -> None:
        assert [page for page in PAGES if not (site / page.with_suffix(".html")).is_file()] == []

    def test_no_page_fetches_anything_from_elsewhere(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            text = page.read_text()
            fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\" >]+)", text)
            fetched += re.findall(
                r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)[^>]*href=\"?([^\" >]+)", text
            )
            assert [address for address in fetched if "//" in address] == [], page

    def test_pipes_in_tables_are_shown_as_they_are_typed(self, site: Path) -> None:
        assert "<code>--chat-template FILE|NAME</code>" in (site / "configuration.html").read_text()

    def test_pictures_say_what_they_show(self) -> None:
        page = (DOCS / "how-the-cache-works.md").read_text()
        shown = re.findall(r"!\[(.+?)\]\((images/\w+\.svg)\)", page)
        assert len(shown) >= 4
        for _, file in shown:
            picture = (DOCS / file).read_text()
            assert "<title>" in picture
            assert "http" not in picture.replace("http://www.w3.org/", "")


class TestWhatIsShown:
    @pytest.mark.parametrize("page", PAGES, ids=str)
    def test_python_parses(self, page: Path) -> None:
        for code in blocks(page, "python"):
            ast.parse(code)

    @pytest.mark.parametrize("page", PAGES, ids=str)
    def test_options_of_serve_exist(self, page: Path) -> None:
        flags = {field_meta(name)[1] for name in Settings.model_fields} | {"--config"}
        for text in blocks(page, "console"):
            for command in commands(text):
                if "onceread serve" in command:
                    used = re.findall(r"(?<=\s)--[a-z-]+", command.split("onceread serve")[1])
                    assert set(used) <= flags, command

    @pytest.mark.parametrize("page", PAGES, ids=str)
    def test_make_has_the_targets(self, page: Path) -> None:
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for text in blocks(page, "console"):
            for command in commands(text):
                if made := re.match(r"(?:\S+=\S+ )*make ([a-z]+)", command):
                    assert made[1] in targets


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server() as running:
        yield running


@pytest.mark.model
class TestStart:
    """docs/start.md's own requests, sent to the demo model."""

    def test_the_page_begins_with_what_make_serve_needs(self) -> None:
        typed = [command for text in blocks(Path("start.md"), "console") for command in commands(text)]
        assert typed[:2] == ["make setup", "make serve"]

    def test_asking_twice_reads_it_once(self, live: Live) -> None:
        (command,) = [
            command
            for text in blocks(Path("start.md"), "console")
            for command in commands(text)
            if command.startswith("curl")
        ]
        _, url, *options = shlex.split(command)
        assert options[:2] == ["-H", "Content-Type: application/json"]
        body = {**json.loads(options[options.index("-d") + 1]), "max_tokens": 2}
        first, second = (httpx.post(at(live, url), json=body, timeout=60).json()["usage"] for _ in range(2))
        assert second["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1

    def test_the_clients_python_answers(self, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
        code, _ = blocks(Path("start.md"), "python")
        exec(compile(at(live, code).replace("max_tokens=40", "max_tokens=2"), "start.md", "exec"), {})
        assert capsys.readouterr().out.strip()

    def test_the_librarys_python_answers(
        self,
        smollm2_path: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("ONCEREAD_CACHE_DIR", str(tmp_path))
        _, code = blocks(Path("start.md"), "python")
        assert '"my-model.gguf"' in code
        code = code.replace('"my-model.gguf"', f"{str(smollm2_path)!r}, n_ctx=512")
        code = code.replace("Session(llama)", "Session(llama, max_tokens=8)")
        exec(compile(code, "start.md", "exec"), {})
        assert capsys.readouterr().out.strip()

    def test_the_terminals_chat_answers(self, live: Live, tmp_path: Path) -> None:
        (command,) = [
            command
            for text in blocks(Path("start.md"), "console")
            for command in commands(text)
            if "chat --url" in command
        ]
        program, *arguments = shlex.split(at(live, command))
        assert program == ".venv/bin/onceread"
        done = subprocess.run(
            [sys.executable, "-m", "onceread", *arguments, "--max-tokens", "8"],
            input="Name three rivers.\n",
            env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def at(live: Live, text: str) -> str:
    assert "http://127.0.0.1:8000" in text
    return text.replace("http://127.0.0.1:8000", live.url)


class TestDeploy:
    def test_compose_gives_the_server_what_it_reads(self) -> None:
        (service,) = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"].values()
        assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        known = {f"ONCEREAD_{name.upper()}" for name in Settings.model_fields}
        assert set(service["environment"]) <= known

    def test_the_image_is_made_of_files_that_are_there(self) -> None:
        text = (ROOT / "deploy/Dockerfile").read_text()
        copied = [
            name for line in re.findall(r"^COPY ([^-].*)$", text, re.MULTILINE) for name in line.split()[:-1]
        ]
        assert copied
        assert [name for name in copied if not (ROOT / name).exists()] == []
        known = {f"ONCEREAD_{name.upper()}" for name in Settings.model_fields}
        assert set(re.findall(r"(ONCEREAD_[A-Z_]+)=", text)) <= known

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
    def test_systemd_takes_the_unit(self, tmp_path: Path) -> None:
        unit = tmp_path / "onceread.service"
        text = (ROOT / "deploy/onceread.service").read_text()
        unit.write_text(text.replace("/opt/onceread/bin/onceread", "/bin/true"))
        checked: Any = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        said = [line for line in checked.stderr.splitlines() if "onceread" in line]
        assert said == []
