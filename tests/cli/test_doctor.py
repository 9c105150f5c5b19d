"""`onceread doctor`: each finding in good and in bad circumstances, which are real where they can be."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.cli.cached import fill
from tests.models.gguf_files import write_gguf
from typer.testing import CliRunner

from onceread.cache.directory import Directory
from onceread.cli import machine as limits_of
from onceread.cli.doctor import build, cache, machine
from onceread.cli.doctor.finding import Finding
from onceread.cli.doctor.report import examine, model_file, show
from onceread.cli.machine import Limits
from onceread.cli.main import app
from onceread.models.catalog import record
from onceread.models.places import at_path
from onceread.server.settings import Settings


def states(findings: list[Finding]) -> dict[str, str]:
    return {one.name: one.state for one in findings}


# -- the software --------------------------------------------------------------


def test_this_python_is_good() -> None:
    assert build.python().state == "ok"


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 9, 1))
    assert build.python().state == "bad"


def test_a_compiler_is_named_and_none_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiler().text.startswith("none found")
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'g++ (Test) 99.1'\n")
    fake.chmod(0o755)
    assert build.compiler().text == "g++ (Test) 99.1"
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "c++").chmod(0o755)
    assert build.compiler().text == "g++ (Test) 99.1"  # one that does not run is passed over


def test_the_binding_loads_and_says_what_it_was_built_with() -> None:
    found = build.binding()
    assert found.state == "ok"
    assert found.data["built"]


def test_a_binding_that_does_not_load(tmp_path: Path) -> None:
    """In a process that finds a broken one first."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("")
    (tmp_path / "llama_cpp" / "llama_cpp.py").write_text("raise OSError('libllama.so: wrong ELF class')\n")
    done = subprocess.run(
        [sys.executable, "-m", "onceread", "doctor", "--no-speed", "--json"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["name"] == "binding"]
    assert found["state"] == "bad"
    assert "wrong ELF class" in found["text"]
    assert "pip install" in found["advice"]


@pytest.mark.parametrize(
    ("flags", "built", "state", "says"),
    [
        pytest.param("avx avx2 fma f16c", {"AVX": 1, "AVX2": 1, "FMA": 1, "F16C": 1}, "ok", "AVX2", id="all"),
        pytest.param(
            "avx avx2 avx512f fma", {"AVX": 1, "AVX2": 1, "FMA": 1}, "warn", "AVX512", id="wider ones unused"
        ),
        pytest.param("avx avx2 fma", {"SSE3": 1}, "warn", "AVX2, FMA", id="built for any CPU"),
        pytest.param("avx avx2", {"AVX": 1, "AVX2": 1, "AVX512": 1}, "bad", "crash", id="built for another"),
        pytest.param("asimd asimddp i8mm", {"NEON": 1, "DOTPROD": 1}, "warn", "MATMUL_INT8", id="ARM"),
        pytest.param("", {"NEON": 1}, "ok", "not known", id="macOS"),
    ],
)
def test_what_the_cpu_can_and_the_binding_uses(
    flags: str, built: dict[str, int], state: str, says: str
) -> None:
    found = build.cpu_features(flags.split(), built)
    assert found.state == state
    assert says in found.text


def test_the_kernels_list_of_features(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nflags\t\t: fpu avx2\n\nprocessor : 1\nflags\t\t: fpu avx2\n")
    assert build.cpu_flags(file) == {"fpu", "avx2"}
    file.write_text("processor : 0\nFeatures\t: fp asimd i8mm\n")
    assert build.cpu_flags(file) == {"fp", "asimd", "i8mm"}
    assert build.cpu_flags(tmp_path / "none") == frozenset()


def test_the_amx_trap() -> None:
    has = {"amx_int8"}
    assert build.amx(set(), {}) is None
    assert build.amx(has, {}, {}).state == "ok"  # type: ignore[union-attr]
    trapped = build.amx(has, {"AMX_INT8": 1}, {})
    assert trapped is not None
    assert trapped.state == "warn"
    assert "ONCEREAD_AMX=1" in str(trapped.advice)
    assert build.amx(has, {"AMX_INT8": 1}, {"ONCEREAD_AMX": "1"}).state == "ok"  # type: ignore[union-attr]


def test_a_gpu_that_the_binding_was_not_built_for() -> None:
    if build.gpu().data["can_offload"]:
        pytest.skip("this binding was built for GPUs")
    assert build.gpu(lambda _: False).state == "ok"
    found = build.gpu(lambda path: path == "/dev/nvidia0")
    assert found.state == "warn"
    assert "GGML_CUDA=on" in str(found.advice)


# -- the machine ---------------------------------------------------------------


def test_memory_and_a_model_that_does_not_fit(tmp_path: Path) -> None:
    assert machine.memory(None).data["free_bytes"] <= psutil.virtual_memory().total
    path = write_gguf(tmp_path / "m.gguf")
    with path.open("r+b") as file:
        file.truncate(2 * psutil.virtual_memory().total)  # a hole
    found = machine.memory(record(at_path(path)))
    assert found.state == "bad"
    assert "smaller" in str(found.advice)


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(available=2**28, total=2**33)
    monkeypatch.setattr("psutil.virtual_memory", lambda: little)
    assert machine.memory(None).state == "warn"


def test_containers() -> None:
    assert machine.container(Limits()).state == "ok"
    assert machine.container(Limits(memory_bytes=2**34, cpus=64.0)).state == "ok"
    assert machine.container(Limits(memory_bytes=2**30, memory_used=2**29)).state == "warn"
    squeezed = machine.container(Limits(cpus=0.5))
    assert squeezed.state == ("warn" if os.cpu_count() != 1 else "ok")


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/user/app\n")
    root = tmp_path / "fs"
    group(root / "user" / "app", memory__max="max\n", cpu__max="max 100000\n")
    assert limits_of.limits(root, tmp_path / "cgroup") == Limits()
    stat = "anon 1\ninactive_file 300\n"
    group(root / "user", memory__max="5000\n", memory__current="1000\n", memory__stat=stat)
    group(root / "user" / "app", cpu__max="150000 100000\n")
    assert limits_of.limits(root, tmp_path / "cgroup") == Limits(5000, 700, 1.5)


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n")
    root = tmp_path / "fs"
    group(root / "memory" / "docker" / "x", memory__limit_in_bytes="6000", memory__usage_in_bytes="10")
    group(root / "memory", memory__limit_in_bytes=str(2**63 - 4096))
    group(root / "cpu,cpuacct" / "docker" / "x", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert limits_of.limits(root, tmp_path / "cgroup") == Limits(6000, 10, None)
    group(root / "cpu,cpuacct" / "docker" / "x", cpu__cfs_quota_us="200000")
    assert limits_of.limits(root, tmp_path / "cgroup").cpus == 2


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/../../elsewhere/app\n")
    group(tmp_path / "fs", memory__max="7000", memory__current="1")
    assert limits_of.limits(tmp_path / "fs", tmp_path / "cgroup").memory_bytes == 7000


def test_no_control_groups(tmp_path: Path) -> None:
    assert limits_of.limits(tmp_path / "fs", tmp_path / "none") == Limits()


def test_busy_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert machine.processors().state == "ok"
    monkeypatch.setattr("psutil.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert machine.processors().state == "warn"


@contextmanager
def limit(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_few_open_files() -> None:
    with limit(resource.RLIMIT_NOFILE, 4096):
        assert machine.open_files().state == "ok"
    with limit(resource.RLIMIT_NOFILE, 200):
        found = machine.open_files()
    assert found.state == "warn"
    assert "ulimit -n" in str(found.advice)


def test_the_folder_for_temporary_files(tmp_path: Path) -> None:
    assert machine.temporary(tmp_path).name == "temporary files"
    assert machine.temporary(tmp_path / "gone").state == "bad"


def test_a_full_folder_for_temporary_files(tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", kib=64) as disk:
        assert machine.temporary(disk).state == "warn"
        fill_up(disk)
        assert machine.temporary(disk).state == "bad"


# -- the cache directory -------------------------------------------------------


@contextmanager
def small_disk(folder: Path, kib: int, options: str = "rw") -> Iterator[Path]:
    """A file system in RAM of its own. Skips where this user may not mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k,{options}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("file systems can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(disk: Path) -> None:
    with (disk / "more").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    fill(folder, "Who was first?", "And who was last?")
    return folder


def test_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    found = cache.directory(tmp_path / "new" / "cache", budget=2**28)
    assert states(found)["cache"] == "ok"
    assert not (tmp_path / "new").exists()


def test_a_cache_that_is_sound(directory: Path) -> None:
    found = cache.directory(directory, budget=2**28)
    assert states(found) | {"cache's file system": "", "cache's disk": ""} == {
        "cache": "ok",
        "cache's file system": "",
        "cache's disk": "",
        "cache's index": "ok",
        "cache's files": "ok",
        "cache's use": "ok",
    }
    (files,) = [one for one in found if one.name == "cache's files"]
    assert files.data == {"checked": 3, "damaged": 0}
    (use,) = [one for one in found if one.name == "cache's use"]
    assert use.data["budget_bytes"] == 2**28


def test_a_cache_that_is_switched_off(directory: Path) -> None:
    assert [one.state for one in cache.directory(directory, wanted=False)] == ["ok"]


def test_a_directory_that_can_t_be_written(tmp_path: Path) -> None:
    """For root permission bits mean nothing: then it is a file system that is mounted read-only."""
    if os.geteuid() == 0:
        with small_disk(tmp_path / "disk", kib=64, options="ro") as disk:
            found = cache.directory(disk)
    else:
        (tmp_path / "cache").mkdir(mode=0o555)
        found = cache.directory(tmp_path / "cache")
    assert states(found)["cache"] == "bad"
    assert "can't be written" in found[0].text
    assert "cache's disk" not in states(found)  # what rests on it is not looked at


def test_a_file_in_the_directorys_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    found = cache.directory(tmp_path / "cache")
    assert states(found)["cache"] == "bad"
    assert "cache's index" not in states(found)


def test_a_damaged_index_is_told_and_left_alone(directory: Path) -> None:
    index = Directory(directory).index
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    damaged = bytearray(index.read_bytes())
    damaged[4096:12_288] = b"\xff" * 8192
    index.write_bytes(damaged)
    found = cache.directory(directory, budget=2**28)
    assert states(found)["cache's index"] == "bad"
    assert states(found)["cache's files"] == "ok"
    assert index.read_bytes() == damaged
    index.write_bytes(b"rubbish" * 1000)
    assert cache.index_sound(directory).state == "bad"


def test_a_damaged_file_is_told_and_left_alone(directory: Path) -> None:
    file = next(Directory(directory).chunks.rglob("*.chunk"))
    damaged = bytearray(file.read_bytes())
    damaged[-1000] ^= 1
    file.write_bytes(damaged)
    found = cache.files_sound(directory)
    assert found.state == "bad"
    assert found.data == {"checked": 3, "damaged": 1}
    assert str(file) in found.text
    assert file.exists()


def test_a_disk_with_too_little_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=1024) as disk:
        assert cache.room(disk / "cache", 2**28).state == "bad"
        kind = cache.file_system(disk / "cache")
    assert (kind.state, kind.data["type"]) == ("warn", "tmpfs")


def test_a_budget_that_the_disk_can_t_hold(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    if free < 2**28:
        pytest.skip("this disk is full")
    assert cache.room(tmp_path, 2**50).state == "warn"
    assert cache.room(tmp_path, 2**20).state == "ok"


@pytest.mark.parametrize(
    ("path", "state"), [("/net/x", "warn"), ("/ram", "warn"), ("/ram/disk/x", "ok"), ("/a b/c", "warn")]
)
def test_what_the_cache_lies_on(path: str, state: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/x /net nfs4 rw 0 0\ntmpfs /ram tmpfs rw 0 0\n"
        "/dev/sdb /ram/disk xfs rw 0 0\n//h/s /a\\040b cifs rw 0 0\n"
    )
    kind = cache.kind_of(Path(path), mounts)
    assert (kind in {"nfs4", "tmpfs", "cifs"}) is (state == "warn")
    assert cache.kind_of(Path(path), tmp_path / "none") is None


# -- the whole -----------------------------------------------------------------


def test_a_model_that_is_torn_or_missing(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert model_file(Settings(model=path))[1].state == "ok"
    path.write_bytes(path.read_bytes()[:-500])
    assert model_file(Settings(model=path))[1].state == "bad"
    assert model_file(Settings(model=tmp_path / "none.gguf"))[1].state == "bad"


def test_what_can_t_be_looked_at_is_a_finding_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2_path: Path
) -> None:
    def fails() -> Finding:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(machine, "processors", fails)
    settings = Settings(cache_dir=tmp_path / "cache")
    found = list(examine(settings, speed=False))
    (one,) = [one for one in found if one.state == "bad"]
    assert (one.name, one.text) == ("processors", "could not be looked at: RuntimeError: no such thing")
    assert states(found)["cache"] == "ok"  # and the rest was


def test_only_what_is_broken_makes_the_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    fine, unlucky = Finding("a", "ok", "fine"), Finding("b", "warn", "slow", "be patient")
    assert show([fine, unlucky], as_json=False) is False
    assert show([fine, unlucky, Finding("c", "bad", "gone", "find it")], as_json=False) is True
    said = capsys.readouterr().out
    assert "ok    a  fine" in said
    assert "warn  b  slow\n      → be patient" in said
    assert said.rstrip().endswith("1 broken, 1 warnings")


@pytest.mark.model
def test_the_command(tmp_path: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceread.cli.doctor.speed._PROMPT", 192)
    monkeypatch.setattr("onceread.cli.doctor.speed._REPLY", 8)
    at = ("--cache-dir", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["doctor", "--json", *at])
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.exit_code == (1 if any(one["state"] == "bad" for one in found.values()) else 0)
    assert found["speed"]["data"]["prefill_tokens"] in (128, 192)
    assert 0 < found["speed"]["data"]["decode_tokens"] <= 8
    (tmp_path / "cache").write_text("in the way")
    done = CliRunner().invoke(app, ["doctor", "--no-speed", *at])
    assert done.exit_code == 1
    assert "is not a folder" in done.stdout
    assert "speed" not in done.stdout
