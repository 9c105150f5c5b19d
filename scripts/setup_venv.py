"""Create .venv, install the project with pinned versions, and show what is going on while llama.cpp compiles.

Standard library only. Quick when there is nothing to do: a stamp remembers what was installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "onceread-setup.stamp"
LOG = VENV / "onceread-setup.log"
EXTRAS = "demo,dev,docs"
BINDING = "llama-cpp-python"
GET_A_COMPILER = (
    "install one (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; "
    "macOS: xcode-select --install) or set CC and CXX"
)
QUIET_PERIOD = 20.0  # seconds between lines when the output is not a terminal


class SetupFailed(Exception):
    """What went wrong and what to do about it, in one line."""


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: pip and its compilers end, too
    try:
        if STAMP.is_file() and PYTHON.exists() and STAMP.read_text() == fingerprint():
            return 0
        ensure_venv()
        wanted = pinned(BINDING)
        compiles = installed(BINDING) != wanted and not has_wheel(BINDING, wanted)
        announcement = ""
        if compiles:
            announcement = (
                f"setup: compiling llama.cpp ({BINDING} {wanted}) for this machine's CPU, "
                f"with {find_compiler()} on {os.cpu_count()} cores; this takes minutes, once"
            )
        started = time.monotonic()
        install(announcement)
        STAMP.write_text(fingerprint())
        print(f"setup: done in {clock(time.monotonic() - started)}")
    except SetupFailed as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; run it again to go on", file=sys.stderr)
        return 130
    return 0


def fingerprint() -> str:
    """Changes when what should be installed changes, or when the checkout moved."""
    digest = hashlib.sha256(f"{ROOT}\n{EXTRAS}\n".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def ensure_venv() -> None:
    """A .venv with a Python that is new enough and has pip; one that is broken is made anew."""
    if PYTHON.exists():
        probe = run(PYTHON, "-c", "import sys, pip; sys.exit(sys.version_info < (3, 10))")
        if probe.returncode == 0:
            return
    version = ".".join(str(part) for part in sys.version_info[:3])
    print(f"setup: making .venv with Python {version}")
    made = run(sys.executable, "-m", "venv", "--clear", VENV)
    if made.returncode != 0:
        if "ensurepip" in made.stdout + made.stderr:
            raise SetupFailed(
                "this Python can't make virtual environments; on Debian, Ubuntu: apt install python3-venv"
            )
        raise SetupFailed(f"could not make {VENV}: {last_line(made.stderr or made.stdout)}")


def pinned(name: str) -> str:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(name + "=="):
            return line.removeprefix(name + "==").split(";")[0].strip()
    raise SetupFailed(f"constraints.txt has no pin for {name}; write it again with scripts/pin.py")


def installed(name: str) -> str | None:
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    found = run(PYTHON, "-c", code, name)
    return found.stdout.strip() if found.returncode == 0 else None


def has_wheel(name: str, version: str) -> bool:
    """Can pip get it built already, say from a folder that PIP_FIND_LINKS names?"""
    pip = (PYTHON, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet")
    return run(*pip, "--only-binary", name, f"{name}=={version}").returncode == 0


def find_compiler() -> str:
    """The C++ compiler's name and version. llama.cpp wants a C compiler, too."""
    arguments = os.environ.get("CMAKE_ARGS", "")
    found = {}
    for language, variable, usual in (
        ("C++", "CXX", ("c++", "g++", "clang++")),
        ("C", "CC", ("cc", "gcc", "clang")),
    ):
        if f"CMAKE_{variable}_COMPILER" in arguments:
            found[language] = "the compiler that CMAKE_ARGS names"
            continue
        chosen = shlex.split(os.environ.get(variable, ""))
        if chosen:
            if shutil.which(chosen[0]) is None:
                raise SetupFailed(
                    f"{variable} names {chosen[0]}, which is not there: set it to a {language} compiler"
                )
            found[language] = chosen[0]
            continue
        present = [name for name in usual if shutil.which(name)]
        if not present:
            raise SetupFailed(
                f"no {language} compiler found, and llama.cpp must be compiled once: {GET_A_COMPILER}"
            )
        found[language] = present[0]
    if shutil.which(found["C++"]):
        version = run(found["C++"], "--version").stdout.partition("\n")[0].strip()
        return f"{found['C++']} ({version})" if version else found["C++"]
    return found["C++"]


def build_arguments() -> str:
    """CMAKE_ARGS for llama.cpp: the user's own, and no AMX where the compiler is known to get it wrong.

    What GCC 12.2 makes of ggml's AMX code dies at the first matrix product; see docs/threads.md.
    """
    arguments = os.environ.get("CMAKE_ARGS", "")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if "_FLAGS" in arguments or "_COMPILER" in arguments or shutil.which(compiler[0]) is None:
        return arguments
    defines = run(*compiler, "-march=native", "-dM", "-E", "-x", "c", os.devnull).stdout
    gcc = re.search(r"__GNUC__ (\d+)", defines)
    if "__AMX_INT8__" not in defines or "__clang__" in defines or gcc is None or int(gcc[1]) >= 14:
        return arguments
    flags = (f"-DCMAKE_{language}_FLAGS=-mno-amx-int8" for language in ("C", "CXX"))
    return " ".join([arguments, *flags]).strip()


def install(announcement: str) -> None:
    """Run pip with its output in the log, and show a line on how far it is.

    ``announcement`` is printed if llama.cpp has to be compiled: pip may have kept an earlier build.
    """
    command = [str(PYTHON), "-m", "pip", "install", "--verbose", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[{EXTRAS}]"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CMAKE_ARGS": build_arguments()}
    with LOG.open("w") as log:
        pip = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that an interrupt reaches it through us, and its compilers with it
        )
        try:
            watch(pip, announcement)
        except BaseException:
            if pip.poll() is None:
                os.killpg(pip.pid, signal.SIGTERM)
                pip.wait()
            raise
    if pip.returncode != 0:
        raise SetupFailed(f"{why_it_failed()}; the whole story is in {LOG.relative_to(ROOT)}")


def why_it_failed() -> str:
    text = LOG.read_text(errors="replace")
    if re.search(rf"failed-wheel-build|Failed (to build|building wheel for).*{BINDING}", text, re.IGNORECASE):
        return "llama.cpp did not compile"
    errors = re.findall(r"^ERROR: (.+)$", text, re.MULTILINE)
    return f"pip failed ({errors[-1].strip()[:160]})" if errors else "pip failed"


class Follower:
    """Reads the log as it grows and knows what pip is doing."""

    def __init__(self) -> None:
        self.doing = "starting pip"
        self._position = 0
        self._rest = ""

    def update(self) -> None:
        with LOG.open(errors="replace") as log:
            log.seek(self._position)
            text = self._rest + log.read()
            self._position = log.tell()
        *lines, self._rest = text.split("\n")
        for line in lines:
            self._read(line.strip())

    def _read(self, line: str) -> None:
        step = re.match(r"\[(\d+)/(\d+)\]", line)
        if step and self.doing.startswith("compiling"):
            self.doing = f"compiling llama.cpp [{step[1]}/{step[2]}]"
        elif line.startswith(("Collecting ", "Obtaining ")):
            self.doing = "finding packages"
        elif match := re.match(r"Downloading ([A-Za-z0-9_.]+)-\d", line):
            self.doing = f"downloading {match[1]}"
        elif re.search(rf"Building wheel for {BINDING} ", line):
            self.doing = "compiling llama.cpp"
        elif line.startswith("Installing collected packages"):
            self.doing = "installing"


def watch(pip: subprocess.Popen[bytes], announcement: str) -> None:
    follower = Follower()
    started = time.monotonic()
    terminal = sys.stdout.isatty()
    shown_at = started - QUIET_PERIOD + 3  # the first line soon, for there to be a sign of life
    while pip.poll() is None:
        time.sleep(0.2)
        follower.update()
        now = time.monotonic()
        if announcement and follower.doing.startswith("compiling"):
            print(("\r\x1b[K" if terminal else "") + announcement)
            announcement = ""
        line = f"setup: {clock(now - started)} {follower.doing}"
        if terminal:
            width = (shutil.get_terminal_size().columns or 80) - 1
            print(f"\r\x1b[K{line[:width]}", end="", flush=True)
        elif now - shown_at >= QUIET_PERIOD:
            print(line, flush=True)
            shown_at = now
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
