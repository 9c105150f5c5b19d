"""`onceread models`, and models served by the names that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.models.gguf_files import write_gguf
from tests.models.hub_server import Behaviour, hub_server
from typer.testing import CliRunner

from onceread.cli.errors import CommandError
from onceread.cli.main import app
from onceread.cli.model_file import existing, name_of
from onceread.cli.models_tables import show_models
from onceread.models.catalog import record
from onceread.models.places import Found, at_path

COMMAND = (sys.executable, "-m", "onceread", "models")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("onceread.models.places._OLLAMA_SYSTEM", tmp_path / "no-ollama")
    return tmp_path


def run(*arguments: str, fails: int = 0) -> str:
    done = CliRunner().invoke(app, ["models", *arguments])
    assert done.exit_code == fails, (done.output, done.exception)
    return done.stdout


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["models", *arguments])
    assert isinstance(done.exception, CommandError), (done.output, done.exception)
    assert "\n" not in str(done.exception)
    return str(done.exception)


class TestList:
    def test_piped_is_a_line_a_model_with_tabs(self, home: Path) -> None:
        path = write_gguf(home / "given" / "m.gguf", file_type=1)
        (home / "given" / "broken.gguf").write_bytes(b"hello")
        broken, good = (line.split("\t") for line in run("ls", str(home / "given")).splitlines())
        assert good[:3] == [str(path), "llama", "F16"]
        assert good[3:6] == [str(path.stat().st_size), str(16 * 64 + 64), "yes"]
        assert "not a GGUF file" in broken[5]

    def test_json_says_what_would_be_needed(self, home: Path) -> None:
        write_gguf(home / "given" / "m.gguf", context_length=4096)
        found = json.loads(run("ls", str(home / "given"), "--json", "--context", "1000"))
        (model,) = found["models"]
        assert found["context"] == 1000
        assert model["context_length"] == 4096
        assert model["needed_bytes"] > model["size_bytes"]
        assert model["fits"] is (model["needed_bytes"] <= found["free_bytes"])

    def test_whether_it_fits_depends_on_the_context(self, home: Path) -> None:
        one = record(at_path(write_gguf(home / "m.gguf")))
        needs = one.needed_bytes(8192) or 0
        for free, says in ((needs, "yes"), (needs - 1, "no, needs")):
            console = Console(force_terminal=True, width=160, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
            show_models([one], 8192, free, console)
            assert says in console.export_text()

    def test_nothing_in_a_models_name_reaches_the_terminal(self, home: Path) -> None:
        evil = record(Found("a\x1b[2Jb", "place", (write_gguf(home / "m.gguf"),)))
        console = Console(force_terminal=True, width=160, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
        show_models([evil], 8192, 2**40, console)
        assert "\x1b[2J" not in console.export_text(styles=False)

    def test_a_folder_that_is_not_there(self, home: Path) -> None:
        assert complaint("ls", str(home / "nowhere")) == f"there is no folder {home / 'nowhere'}"

    def test_json_of_a_name_that_is_no_text(self, home: Path) -> None:
        folder = home / "given"
        write_gguf(folder / "m.gguf").rename(folder / "\udcff\x9b.gguf")
        shown = run("ls", str(folder), "--json")
        assert shown.isascii()
        assert json.loads(shown)["models"][0]["name"].endswith("\udcff\x9b.gguf")

    @pytest.mark.parametrize("name", ["~nobody-has-this-name/m.gguf", "m" * 5000 + ".gguf"])
    def test_a_path_that_can_t_be(self, home: Path, name: str) -> None:
        assert complaint("ls", name).startswith("there is no folder")
        assert complaint("inspect", name).startswith("no such model file")


def test_nothing_of_a_file_reaches_the_terminal_as_it_is(home: Path) -> None:
    path = write_gguf(home / "m\x1b[31m.gguf", "evil\x1b[2J\x9b2J")
    shown = subprocess.run([*COMMAND, "inspect", str(path)], capture_output=True, text=True, check=True)
    (home / "n\x1b[31m.gguf").write_bytes(b"torn")
    torn = subprocess.run(
        [*COMMAND, "inspect", f"{home}/n\x1b[31m.gguf"], capture_output=True, text=True, check=False
    )
    assert torn.stderr.startswith("onceread: ")
    for text in (shown.stdout, shown.stderr, torn.stderr):
        assert "\x1b" not in text
        assert "\x9b" not in text


@pytest.mark.model
class TestInspect:
    def test_a_plain_model(self, smollm2_path: Path) -> None:
        found = json.loads(run("inspect", str(smollm2_path), "--json"))
        assert (found["architecture"], found["quantization"]) == ("llama", "Q4_1")
        assert found["memory"]["kind"] == "plain attention"
        assert found["memory"]["bytes_per_token"] == 23_052
        assert found["can"] == {"serve": True, "moved_reuse": True, "exact": True, "overflow_shift": True}
        assert found["metadata"]["tokenizer.ggml.tokens"] == "49,152 of string"
        assert "<|im_start|>" in found["chat_template"]
        shown = run("inspect", str(smollm2_path))
        assert "23,052 bytes a token" in shown
        assert "llama.context_length" in shown

    def test_what_can_t_be_loaded_says_why(self, home: Path) -> None:
        found = json.loads(run("inspect", str(write_gguf(home / "m.gguf")), "--json"))
        assert "is not a model that can be loaded" in found["can"]["serve"]
        assert found["metadata"]["llama.block_count"] == 2

    def test_a_torn_file(self, home: Path) -> None:
        path = write_gguf(home / "m.gguf")
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        assert "bytes are missing" in json.loads(run("inspect", str(path), "--json"))["problem"]
        path.write_bytes(whole[:200])
        assert "torn" in complaint("inspect", str(path))

    def test_a_file_that_is_not_there(self, home: Path) -> None:
        assert complaint("inspect", "/no/such.gguf").startswith("no such model file: /no/such.gguf")


def pull(home: Path, *arguments: str, endpoint: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's client reads its variables when it is imported."""
    return subprocess.run(
        [*COMMAND, "pull", *arguments],
        env={**os.environ, "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_was_pulled_is_listed_and_served_by_its_name(home: Path, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "source.gguf").read_bytes()
    behaviour = Behaviour(repos={"org/repo": {"m-Q4_K_M.gguf": content, "m-Q8_0.gguf": content + bytes(8)}})
    with pytest.raises(
        CommandError, match=r"--model: org/repo:Q4_K_M is neither .* onceread models pull org/repo:Q4_K_M"
    ):
        existing(Path("org/repo:Q4_K_M"), "--model")
    with hub_server(behaviour) as endpoint:
        done = pull(home, "org/repo:q4_k_m", endpoint=endpoint)
        assert done.returncode == 0, done.stderr
        assert "onceread serve --model org/repo:Q4_K_M" in done.stdout
        assert done.stderr.splitlines()[0].startswith("downloading m-Q4_K_M.gguf")
        again = pull(home, "org/repo:Q4_K_M", "--json", endpoint=endpoint)
        assert json.loads(again.stdout)["downloaded_bytes"] == 0
        missing = pull(home, "org/repo:Q3_K_M", endpoint=endpoint)
        assert missing.returncode == 1
        assert missing.stderr == "onceread: org/repo has no Q3_K_M; there are: Q4_K_M, Q8_0\n"
    (model,) = json.loads(run("ls", "--json"))["models"]
    assert (model["name"], model["place"]) == ("org/repo:Q4_K_M", "Hugging Face")
    for text in ("org/repo:Q4_K_M", "org/repo:q4_k_m", "org/repo"):
        assert existing(Path(text), "--model").read_bytes() == content
    assert name_of(Path("org/repo:Q4_K_M")) is None  # the file's own name says it


@pytest.fixture
def ollama(home: Path, smollm2_path: Path) -> Path:
    """A model as Ollama keeps it: its blob."""
    models = home / ".ollama" / "models"
    blob = models / "blobs" / "sha256-abcd"
    blob.parent.mkdir(parents=True)
    blob.symlink_to(smollm2_path)
    manifest = models / "manifests/registry.ollama.ai/library/smol/135m"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abcd"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    return blob


@pytest.mark.model
def test_ollamas_models_keep_their_names_in_the_api(ollama: Path) -> None:
    assert existing(Path("smol:135m"), "--model") == ollama
    assert name_of(Path("smol:135m")) == "smol:135m"
    command = [
        sys.executable,
        "-m",
        "onceread",
        "serve",
        "--port",
        "0",
        "--ctx-size",
        "512",
        "--no-disk-cache",
    ]
    served = subprocess.Popen([*command, "--model", "smol:135m"], stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout
        said = next(line for line in served.stdout if line.startswith("  model"))
    finally:
        served.terminate()
        served.wait(30)
    assert said.split()[:2] == ["model", "smol:135m"]
