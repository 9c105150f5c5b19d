"""From what a person types for a model to its file: a path, or a name that `onceread models ls` prints.

Nothing is ever downloaded here: `onceread models pull` does that, when it is told to.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence

from onceread.models.errors import ModelUnknown
from onceread.models.names import FileSet, choose, parse_reference
from onceread.models.places import Found, find_all


def looks_like_path(text: str) -> bool:
    """Would a person have meant a file by this? Then it is not looked up among the models' names."""
    return text.startswith((".", "/", "~")) or (
        text.lower().endswith(".gguf") and parse_reference(text) is None
    )


def resolve(text: str, environ: Mapping[str, str] = os.environ) -> Found:
    """The model of this name, whole. Raises ModelUnknown, ModelAmbiguous.

    Names are, in this order: what `ls` prints; the same in any case; `org/repo` where there is but one of its
    models; a quantization in any case behind it; a model of Ollama without its tag, which then is `latest`.
    """
    found = find_all(environ=environ)
    for fits in (
        [one for one in found if one.name == text],
        [one for one in found if one.name.lower() == text.lower()],
        [one for one in found if one.place == "Ollama" and one.name.lower() == f"{text.lower()}:latest"],
    ):
        if fits:
            return _whole(fits[0])  # the same model in two places: the first will do
    reference = parse_reference(text)
    if reference is not None:
        repo = reference.repo.lower()
        of_repo = [one for one in found if one.files and one.name.partition(":")[0].lower() == repo]
        if of_repo:
            return _whole(_chosen(of_repo, reference.which, reference.repo))
        raise ModelUnknown(
            f"{text} is neither a file nor a model on this machine{_near(text, found)}; "
            f"the hub's is downloaded by: onceread models pull {text}"
        )
    raise ModelUnknown(
        f"there is no model {text!r}: give the path of a GGUF file, or a name that onceread models ls prints"
        + _near(text, found)
    )


def _chosen(models: Sequence[Found], which: str | None, repo: str) -> Found:
    """By the same rules as for what a repository offers."""
    by_files = {one.files: one for one in reversed(models)}
    return by_files[
        choose([FileSet(files, by_files[files].parts) for files in sorted(by_files)], which, repo).files
    ]


def _whole(one: Found) -> Found:
    if not one.is_whole:
        raise ModelUnknown(
            f"{one.name} is not complete: {len(one.paths)} of its {one.parts} files are here, "
            f"in {one.path.parent}; get the rest by: onceread models pull {one.name}"
        )
    return one


def _near(text: str, found: Sequence[Found]) -> str:
    near = difflib.get_close_matches(text, [one.name for one in found], n=1)
    return f"; did you mean {near[0]}?" if near else ""
