"""Where models lie on this machine: other programs' folders, our own, and those that were named.

Only names are looked at here, no file is opened but the few lines that say where something is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from onceread.models.home import expanded
from onceread.models.names import FileSet, file_sets, split_stem

_MAX_MANIFEST = 2**20  # bytes
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_SYSTEM = Path("/usr/share/ollama/.ollama/models")  # of the service on Linux
FOLDERS_VARIABLE = "ONCEREAD_MODELS"


@dataclass(frozen=True, slots=True)
class Found:
    """A model and its files. ``name`` is what finds it again; see resolve.py."""

    name: str
    place: str  # "Hugging Face", "LM Studio", "Ollama", "Onceread", or the folder
    paths: tuple[Path, ...]  # in order; of a split model the first one is loaded
    parts: int = 1
    files: tuple[str, ...] = ()  # of a repository's copy: their paths there

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def is_whole(self) -> bool:
        return len(self.paths) == self.parts


def own_folder() -> Path:
    """Where people may put models for this program alone."""
    return platformdirs.user_data_path("onceread") / "models"


def find_all(folders: Iterable[Path] = (), environ: Mapping[str, str] = os.environ) -> list[Found]:
    """Every model there is: in ``folders``, in those of ONCEREAD_MODELS, in our own and in other programs'.

    A file that several places lead to is told once. Folders that don't exist or can't be read count as empty.
    """
    extra = [expanded(one) for one in environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if one]
    found: list[Found] = []
    for folder in (*folders, *extra):
        found += in_folder(folder)
    found += in_folder(own_folder(), "Onceread")
    found += in_hugging_face(hugging_face_cache(environ))
    for folder in lm_studio_folders(environ):
        found += in_lm_studio(folder)
    for folder in ollama_folders(environ):
        found += in_ollama(folder)
    return list(_once(found))


def _once(found: Iterable[Found]) -> Iterator[Found]:
    seen: set[tuple[int, int]] = set()
    for one in found:
        try:
            status = one.path.stat()
        except OSError:
            continue  # a link to nowhere
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield one


def at_path(path: Path) -> Found:
    """The model that a file is, or begins: with the parts beside it if it is split."""
    beside = [path.name]
    if split_stem(path.name) is not None:
        with suppress(OSError):
            beside = [one.name for one in path.parent.iterdir() if one.is_file()]
    for one in file_sets(beside):
        if path.name in one.files:
            return _found(str(path), str(path.parent), path.parent, one)
    return Found(str(path), str(path.parent), (path,))


# -- folders -------------------------------------------------------------------


def in_folder(folder: Path, place: str | None = None) -> list[Found]:
    """Models anywhere below a folder. In our own they have short names, elsewhere their paths."""
    found = []
    for one in file_sets(_gguf_files(folder)):
        name = one.name if place else str(folder / one.files[0])
        found.append(_found(name, place or str(folder), folder, one))
    return found


def _gguf_files(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):  # errors count as empty; links to folders are not followed
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in files:
            if file.lower().endswith(".gguf"):
                yield (Path(where) / file).relative_to(folder).as_posix()


def _found(name: str, place: str, folder: Path, one: FileSet) -> Found:
    return Found(name, place, tuple(folder / file for file in one.files), one.parts)


def _found_in_repo(name: str, place: str, folder: Path, one: FileSet) -> Found:
    return replace(_found(name, place, folder, one), files=one.files)


def _repo_models(repo: str, place: str, folder: Path, names: Iterable[str]) -> list[Found]:
    """Models of a repository's copy, named `org/repo:quant` where that names one of them, else by the file."""
    sets = file_sets(names)
    quants = [one.quant for one in sets]
    return [
        _found_in_repo(
            f"{repo}:{one.quant if one.quant and quants.count(one.quant) == 1 else one.files[0]}",
            place,
            folder,
            one,
        )
        for one in sets
    ]


# -- Hugging Face --------------------------------------------------------------


def hugging_face_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The hub's cache, by the variables that huggingface_hub reads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return expanded(os.path.expandvars(environ[variable]))
    if environ.get("HF_HOME"):
        return expanded(os.path.expandvars(environ["HF_HOME"])) / "hub"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(cache) / "huggingface" / "hub"


def in_hugging_face(cache: Path) -> list[Found]:
    """Models of the hub's cache. Of several revisions the one that `main` means, then the newest."""
    found = []
    for folder in _folders(cache):
        if not folder.name.startswith("models--") or folder.name.count("--") != 2:
            continue
        repo = folder.name.removeprefix("models--").replace("--", "/")
        seen: set[str] = set()
        for snapshot in _snapshots(folder):
            names = [name for name in _gguf_files(snapshot) if _is_there(snapshot / name)]
            for one in _repo_models(repo, "Hugging Face", snapshot, names):
                if one.name not in seen:
                    seen.add(one.name)
                    found.append(one)
    return found


def _snapshots(folder: Path) -> list[Path]:
    main = (_read(folder / "refs" / "main") or "").strip()
    snapshots = _folders(folder / "snapshots")
    return sorted(snapshots, key=lambda one: (one.name == main, one.stat().st_mtime), reverse=True)


# -- LM Studio -----------------------------------------------------------------


def lm_studio_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where LM Studio keeps models: of today and of before, and where its settings say."""
    home = Path(environ.get("HOME") or Path.home())
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    pointed = (_read(home / ".lmstudio-home-pointer") or "").strip()
    if pointed:
        homes.insert(0, Path(pointed))
    folders = []
    for one in homes:
        try:
            chosen = json.loads(_read(one / "settings.json") or "{}").get("downloadsFolder")
        except (ValueError, AttributeError, RecursionError):
            chosen = None
        if isinstance(chosen, str) and chosen:
            folders.append(Path(chosen))
        folders.append(one / "models")
    return list(dict.fromkeys(folders))


def in_lm_studio(folder: Path) -> list[Found]:
    """Models that lie as `org/repo/file.gguf`."""
    found = []
    for org in _folders(folder):
        for repo in _folders(org):
            found += _repo_models(f"{org.name}/{repo.name}", "LM Studio", repo, _gguf_files(repo))
    return found


# -- Ollama --------------------------------------------------------------------


def ollama_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    if environ.get("OLLAMA_MODELS"):
        return [expanded(environ["OLLAMA_MODELS"])]
    home = Path(environ.get("HOME") or Path.home())
    return [home / ".ollama" / "models", _OLLAMA_SYSTEM]


def in_ollama(folder: Path) -> list[Found]:
    """Models by Ollama's manifests, named as Ollama names them: `llama3.2:3b`."""
    manifests = folder / "manifests"
    found = []
    for where, folders, files in os.walk(manifests):
        folders.sort()
        for file in sorted(files):
            path = Path(where) / file
            blobs = [folder / "blobs" / digest.replace(":", "-") for digest in _model_layers(path)]
            parts = path.relative_to(manifests).parts
            if len(parts) == 4 and blobs and all(map(_is_there, blobs)):
                found.append(Found(_ollama_name(*parts), "Ollama", tuple(blobs), len(blobs)))
    return found


def _ollama_name(host: str, owner: str, model: str, tag: str) -> str:
    if host != _OLLAMA_HOST:
        return f"{host}/{owner}/{model}:{tag}"
    return f"{model}:{tag}" if owner == "library" else f"{owner}/{model}:{tag}"


def _model_layers(manifest: Path) -> list[str]:
    """The digests of the layers that are weights; none if it is no manifest."""
    try:
        layers = json.loads(_read(manifest) or "{}").get("layers", [])
        digests = [layer["digest"] for layer in layers if layer.get("mediaType") == _OLLAMA_MODEL]
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return []
    good = [
        one for one in digests if isinstance(one, str) and one.startswith("sha256:") and one[7:].isalnum()
    ]
    return good if len(good) == len(digests) else []


# -- files ---------------------------------------------------------------------


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_MANIFEST).decode("utf-8", errors="replace")
    except (OSError, ValueError):  # a path that another program's settings name can be none
        return None


def _is_there(path: Path) -> bool:
    """Is it a file, as far as this user may see?"""
    try:
        return path.is_file()
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    except (OSError, ValueError):
        return []
