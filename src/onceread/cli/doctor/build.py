"""The software: Python, the compiler, llama.cpp's binding and what of this machine it was built to use."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from onceread.cli.doctor.finding import Finding, bad, ok, warn
from onceread.cli.errors import one_line

REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_OLDEST = (3, 10)
_COMPILERS = ("c++", "g++", "clang++", "cc")
_SECONDS = 10  # for a compiler to say its version
# llama.cpp's name of a feature, and the kernel's in /proc/cpuinfo. The widest first: each makes the next moot.
_WIDTHS = (("AVX512", "avx512f"), ("AVX2", "avx2"), ("AVX", "avx"))
_EXTRAS = (
    ("FMA", "fma"),
    ("F16C", "f16c"),
    ("AVX512_VNNI", "avx512_vnni"),
    ("AVX512_BF16", "avx512_bf16"),
    ("AVX_VNNI", "avx_vnni"),
    ("DOTPROD", "asimddp"),
    ("MATMUL_INT8", "i8mm"),
    ("SVE", "sve"),
)
_AMX = "AMX_INT8"
_GPUS = (
    ("NVIDIA", ("/dev/nvidia0",), "-DGGML_CUDA=on"),
    ("AMD", ("/dev/kfd",), "-DGGML_HIP=on, or -DGGML_VULKAN=on"),
)


def python() -> Finding:
    version = platform.python_version()
    data = {"version": version, "executable": sys.executable}
    if sys.version_info < _OLDEST:
        return bad("Python", f"{version} is too old", "install Python 3.10 or later", **data)
    if sys.maxsize < 2**32:
        return bad("Python", f"{version} is a 32-bit one", "install a 64-bit Python", **data)
    return ok("Python", f"{version} ({sys.executable})", **data)


def compiler(which: Callable[[str], str | None] = shutil.which) -> Finding:
    for name in _COMPILERS:
        path = which(name)
        if path is None:
            continue
        try:
            said = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if said.returncode == 0 and said.stdout:
            line = said.stdout.splitlines()[0].strip()
            return ok("compiler", line, path=path, version=line)
    return ok("compiler", "none found; one is needed only to build the binding again", path=None)


def binding() -> Finding:
    """Does llama.cpp load at all? Everything else depends on it."""
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return bad("binding", "llama-cpp-python is not installed", "pip install llama-cpp-python")
    try:
        from onceread.native.backend import features

        built = features()
    except Exception as error:  # noqa: BLE001 - a broken shared library raises many things
        return bad("binding", f"{version} does not load: {one_line(error)}", REBUILD, version=version)
    flags = " ".join(name for name, value in built.items() if value)
    return ok("binding", f"llama-cpp-python {version}, built with {flags}", version=version, built=built)


def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the kernel says that the CPU can; empty where it does not say (macOS)."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def cpu_features(flags: Collection[str], built: Mapping[str, int]) -> Finding:
    """What the CPU can and the binding does not use, and the other way round."""
    data = {"built": dict(built)}
    if not flags:
        return ok("CPU", f"{platform.machine()}; what it can is not known here", **data)
    needs = [ours for ours, theirs in (*_WIDTHS, *_EXTRAS) if built.get(ours) and theirs not in flags]
    if needs:
        return bad(
            "CPU",
            f"the binding uses {', '.join(needs)}, which this CPU does not have: it will crash",
            f"build it on this machine: {REBUILD}",
            unusable=needs,
            **data,
        )
    widest = next((ours for ours, theirs in _WIDTHS if theirs in flags), None)
    unused = [widest] if widest is not None and not built.get(widest) else []
    unused += [ours for ours, theirs in _EXTRAS if theirs in flags and not built.get(ours)]
    if unused:
        return warn(
            "CPU",
            f"it has {', '.join(unused)}, and the binding does not use it: slower than it could be",
            f"build it on this machine: {REBUILD}",
            unused=unused,
            **data,
        )
    return ok("CPU", f"the binding uses what it has ({widest or platform.machine()})", **data)


def amx(
    flags: Collection[str], built: Mapping[str, int], environ: Mapping[str, str] = os.environ
) -> Finding | None:
    """The trap of docs/threads.md; None for CPUs without AMX."""
    if "amx_int8" not in flags:
        return None
    if not built.get(_AMX):
        return ok("AMX", "this CPU has it, the binding was built without: AVX-512 serves instead", used=False)
    if environ.get("ONCEREAD_AMX") == "1":
        return ok("AMX", "used, since ONCEREAD_AMX=1 vouches for the build", used=True)
    return warn(
        "AMX",
        "the binding was built with it and it is not used: GCC 12.2 is known to compile it wrong",
        "with any other compiler, set ONCEREAD_AMX=1 and see whether onceread doctor survives its speed test",
        used=False,
    )


def gpu(exists: Callable[[str], bool] = os.path.exists) -> Finding:
    """GPUs that llama.cpp sees, or that it could if it were built for them."""
    from onceread.native.backend import can_offload, devices

    seen = [one for one in devices() if one.is_gpu]
    data = {"gpus": [one.description for one in seen], "can_offload": can_offload()}
    if seen:
        names = ", ".join(f"{one.name}: {one.description}" for one in seen)
        return ok("GPU", f"{names}; --gpu-layers -1 puts a model there", **data)
    for maker, paths, flag in _GPUS:
        if any(exists(path) for path in paths):
            if data["can_offload"]:
                return warn(
                    "GPU",
                    f"there is one of {maker}'s, and llama.cpp does not find it",
                    "check its driver, and that this user may open its device",
                    **data,
                )
            return warn(
                "GPU",
                f"there is one of {maker}'s, and the binding was built for the CPU alone",
                f'CMAKE_ARGS="{flag}" {REBUILD}',
                **data,
            )
    return ok("GPU", "none; llama.cpp computes on the CPU", **data)
