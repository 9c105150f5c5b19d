"""``Llama.from_pretrained``: a model's files from the Hugging Face Hub, found by a pattern."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path

from onceread.library.errors import InvalidParameter


def fetch(
    repo_id: str,
    filename: str,
    additional_files: Sequence[str] | None = None,
    *,
    local_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """The path of the one file of a repository that matches ``filename``, downloaded unless it is there already.

    ``additional_files``, patterns of one file each, come to lie beside it: the other parts of a split model. Into
    ``local_dir``, or else the Hub's cache (``cache_dir``: another place for that). Raises InvalidParameter where a
    pattern matches no file or several, and what huggingface_hub raises.
    """
    from huggingface_hub import HfApi, hf_hub_download

    files = HfApi().list_repo_files(repo_id)
    patterns = [
        ("filename", filename),
        *(("additional_files", pattern) for pattern in additional_files or ()),
    ]
    paths = [
        hf_hub_download(
            repo_id,
            _only(files, pattern, repo_id, param),
            local_dir=None if local_dir is None else Path(local_dir),
            cache_dir=None if cache_dir is None else Path(cache_dir),
        )
        for param, pattern in patterns
    ]
    return Path(paths[0])


def _only(files: Sequence[str], pattern: str, repo_id: str, param: str) -> str:
    found = [file for file in files if fnmatch.fnmatch(file, pattern)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join((found or files)[:20]) or "nothing"
    which = f"{len(found)} files of {repo_id} match" if found else f"no file of {repo_id} matches"
    raise InvalidParameter(
        f"{param}: {which} {pattern!r}; {'these' if found else 'there are'}: {shown}", param
    )
