"""One file from the hub into a place on the disk: whole and verified, or a part to go on from.

huggingface_hub goes on after a cut within one call, and begins anew in the next one. Models take hours on slow
lines, so what was read stays in a file beside the goal, and any later call goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from onceread.models.errors import ChecksumWrong, PullFailed
from onceread.models.hub import HubFile

Progress = Callable[[str, int, int], None]
"""Called with what is done ("downloading", "verifying"), and bytes: those that are there, and all."""

_PART = ".onceread.incomplete"
_READ = 4 * 2**20
_ATTEMPTS = 5  # in a row without a byte
_TIMEOUT = 30.0  # seconds without a byte
_PAUSE = 1.0  # seconds after the first failure; then twice as long, and so on
_AGAIN = (408, 429, 500, 502, 503, 504)


def part_of(goal: Path) -> Path:
    """Where what was read so far lies."""
    return goal.with_name(goal.name + _PART)


def missing_bytes(file: HubFile, goal: Path) -> int:
    """What is still to be downloaded."""
    for path in (goal, part_of(goal)):
        if path.is_file():
            return max(0, file.size - path.stat().st_size)
    return file.size


def fetch(
    url: str,
    file: HubFile,
    goal: Path,
    *,
    headers: Mapping[str, str],
    progress: Progress,
) -> None:
    """Make ``goal`` the file, whatever there is of it. A file that is there is only verified.

    Raises ChecksumWrong, PullFailed, the client's HTTPError, OSError. After a cut the part stays.
    """
    if goal.is_file():
        if goal.stat().st_size == file.size and sha256_of(goal, progress) == file.sha256:
            return
        goal.unlink()  # damaged since it was verified
    part = part_of(goal)
    goal.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as out:
        _claim(out, file)
        if part.stat().st_size > file.size:
            out.truncate(0)
        _read_rest(url, file, out, headers, progress)
        out.flush()
        os.fsync(out.fileno())
        if sha256_of(part, progress) != file.sha256:
            part.unlink()
            raise ChecksumWrong(
                f"{file.name} is not what the hub says it is (its SHA-256 is another one) and was removed: "
                "pull it again; if it happens again, something on the way changes it"
            )
        part.replace(goal)


def _claim(out: BinaryIO, file: HubFile) -> None:
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PullFailed(f"another process is downloading {file.name}: wait for it") from None
    except OSError:
        pass  # a file system without locks


def _read_rest(
    url: str,
    file: HubFile,
    out: BinaryIO,
    headers: Mapping[str, str],
    progress: Progress,
) -> None:
    from huggingface_hub.errors import HTTPError

    failures = 0
    while (have := out.seek(0, os.SEEK_END)) < file.size:
        progress("downloading", have, file.size)
        try:
            _read_once(url, file, out, headers, progress)
            problem = None
        except HTTPError as error:
            response = getattr(error, "response", None)
            if response is not None and response.status_code not in _AGAIN:
                raise
            problem = error
        failures = 0 if out.tell() > have else failures + 1
        if failures >= _ATTEMPTS:
            raise problem or PullFailed(f"{file.name}: the hub sends nothing")
        if failures or problem is not None:
            time.sleep(_PAUSE * 2.0 ** max(failures - 1, 0))
    progress("downloading", file.size, file.size)


def _read_once(
    url: str, file: HubFile, out: BinaryIO, headers: Mapping[str, str], progress: Progress
) -> None:
    """Until the file is whole, or the connection ends."""
    from huggingface_hub.utils import get_session, hf_raise_for_status

    have = out.tell()
    wanted = {**headers, "Accept-Encoding": "identity"}
    if have:
        wanted["Range"] = f"bytes={have}-"
    # A redirect to another host loses the token: the client sees to it.
    with get_session().stream(
        "GET", url, headers=wanted, timeout=_TIMEOUT, follow_redirects=True
    ) as response:
        hf_raise_for_status(response)
        if have and response.status_code != 206:  # a server that knows no ranges sends it all again
            out.truncate(0)
            have = 0
        # In pieces as they come: gathering them would lose what a cut leaves half gathered.
        for piece in response.iter_bytes():
            have += len(piece)
            if have > file.size:
                out.truncate(0)
                raise PullFailed(
                    f"{file.name}: more came than the {file.size:,} bytes that the hub announced"
                )
            out.write(piece)
            progress("downloading", have, file.size)


def sha256_of(path: Path, progress: Progress = lambda *_: None) -> str:
    digest = hashlib.sha256()
    size = path.stat().st_size
    done = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ):
            digest.update(piece)
            done += len(piece)
            progress("verifying", done, size)
    return digest.hexdigest()
