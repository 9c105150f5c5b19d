"""Paths as people write them, with ``~`` for a home."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home in the place of ``~`` and ``~name``; as it stands where there is no such home.

    `Path.expanduser` raises a RuntimeError then; this way it is a path that does not exist, as any other.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111
