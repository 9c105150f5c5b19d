"""Names of model files: the quantization in them, which parts belong together, and `org/repo:quant`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from onceread.models.errors import ModelAmbiguous, ModelUnknown

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
# Q4_K_M, IQ2_XXS, UD-Q4_K_XL, BF16, F16, MXFP4, MXFP4_MOE, TQ1_0, …: whole words of a name, the last one counts.
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?"
    r"(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|FP16|F32|FP32|MXFP4(?:_MOE)?|NVFP4)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_DYNAMIC = "UD-"  # Unsloth's mark before the name of a quantization
_NOT_MODELS = ("mmproj", "imatrix")  # GGUF files beside models: image encoders, statistics for quantizing
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HOSTS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    """`org/repo`, `org/repo:quant` or `org/repo:file.gguf`, as people write it."""

    repo: str
    which: str | None  # a quantization, or a file of the repository

    def __str__(self) -> str:
        return f"{self.repo}:{self.which}" if self.which else self.repo


def parse_reference(text: str) -> Reference | None:
    """What `org/repo:quant` names; None if the text is not of that form. Web addresses of a repository will do.

    `org/repo/file.gguf` names a file of the repository.
    """
    text = _HOSTS.sub("", text.strip(), count=1) if _HOSTS.match(text.strip()) else text.strip()
    repo, colon, which = text.partition(":")
    repo = repo.rstrip("/")
    if colon and not which:
        return None
    if not colon and repo.count("/") > 1 and repo.lower().endswith(".gguf"):
        owner, name, which = repo.split("/", 2)
        repo = f"{owner}/{name}"
    if not _REPO.fullmatch(repo) or ".." in repo or repo.lower().endswith(".gguf"):
        return None
    return Reference(repo, which or None)


def quant_of(name: str) -> str | None:
    """The quantization that a file's path names, in capitals, or None. The file's own name counts first."""
    path = PurePosixPath(name)
    for part in (split_stem(path.name) or path.stem, *reversed(path.parent.parts)):
        found = _QUANT.findall(part)
        if found:
            return str(found[-1]).upper()
    return None


def split_stem(name: str) -> str | None:
    """What a part of a split model is called without its number, or None if it is not one."""
    match = _SPLIT.fullmatch(name)
    return match["stem"] if match else None


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files that are one model, in order; one, unless it is split."""

    files: tuple[str, ...]
    parts: int  # how many there should be

    @property
    def is_whole(self) -> bool:
        return len(self.files) == self.parts

    @property
    def name(self) -> str:
        """The first file's path without `.gguf` and without the part's number."""
        path = PurePosixPath(self.files[0])
        stem = split_stem(path.name) or path.name[: -len(".gguf")]
        return str(path.with_name(stem))

    @property
    def quant(self) -> str | None:
        return quant_of(self.files[0])


def file_sets(names: Iterable[str]) -> list[FileSet]:
    """The models among these paths, parts of one put together. What is not a model is left out."""
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        lower = path.name.lower()
        if not lower.endswith(".gguf") or any(word in lower for word in _NOT_MODELS):
            continue
        match = _SPLIT.fullmatch(path.name)
        if match is None:
            sets[name, 1] = {1: name}
        elif int(match["part"]) <= int(match["parts"]):
            key = str(path.with_name(match["stem"])), int(match["parts"])
            sets.setdefault(key, {})[int(match["part"])] = name
    return [FileSet(tuple(by[i] for i in sorted(by)), parts) for (_, parts), by in sorted(sets.items())]


def choose(sets: Sequence[FileSet], which: str | None, whose: str) -> FileSet:
    """The one model that ``which`` names: a quantization in any case, or a file.

    ``whose`` is the repository, for messages. Raises ModelUnknown, ModelAmbiguous, which list what there is.
    """
    there = ", ".join(sorted({one.quant or one.name for one in sets}))
    if not sets:
        raise ModelUnknown(f"{whose} has no GGUF model")
    if which is None:
        if len(sets) == 1:
            return sets[0]
        raise ModelAmbiguous(f"{whose} has several models; say which, as {whose}:{_example(sets)}: {there}")
    wanted = which.upper()
    ways: tuple[Callable[[FileSet], bool], ...] = (
        lambda one: which in one.files or which == one.name,
        lambda one: one.quant == wanted,
        lambda one: (one.quant or "").removeprefix(_DYNAMIC) == wanted,
        lambda one: one.name.upper() == wanted.removesuffix(".GGUF"),
    )
    for fits in ways:
        found = [one for one in sets if fits(one)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(one.files[0] for one in found)
            raise ModelAmbiguous(
                f"{whose}:{which} fits {len(found)} models; name the file, as {whose}:{found[0].files[0]}: {names}"
            )
    raise ModelUnknown(f"{whose} has no {which}; there are: {there}")


def _example(sets: Sequence[FileSet]) -> str:
    quants = [one.quant for one in sets if one.quant]
    return "Q4_K_M" if "Q4_K_M" in quants else (quants[0] if quants else sets[0].files[0])
