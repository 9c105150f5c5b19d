"""Download a model by `org/repo:quant` into the Hugging Face cache, where other programs find it, too."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onceread.models.download import Progress, fetch, missing_bytes, sha256_of
from onceread.models.errors import ChecksumWrong, DiskTooSmall, ModelUnknown, PullFailed
from onceread.models.hub import SHA256, Hub, HubFile, Repository, plain_errors
from onceread.models.names import FileSet, choose, parse_reference
from onceread.models.places import hugging_face_cache

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPARE = 64 * 2**20  # bytes that a disk should have left


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is now on this machine. Of a split one the first file is loaded."""

    name: str  # for --model
    paths: tuple[Path, ...]
    size_bytes: int
    downloaded_bytes: int  # 0: it was all there, and its checksum is right


def pull(
    text: str,
    *,
    progress: Callable[[HubFile, str, int, int], None] = lambda *_: None,
    hub: Hub | None = None,
    cache: Path | None = None,
) -> Pulled:
    """Get the model that ``text`` names, verified by SHA-256; what is there already is only verified.

    ``progress`` gets the file, what is done with it, and bytes done and in all. ``cache`` is the hub's cache.
    Raises ModelUnknown, ModelAmbiguous, DiskTooSmall, ChecksumWrong, PullFailed; after a cut, or Ctrl-C, the next
    call goes on where this one stopped.
    """
    reference = parse_reference(text)
    if reference is None:
        raise ModelUnknown(
            f"{text!r} names no repository: write org/repo:quant, as bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"
        )
    hub = hub or Hub()
    cache = cache or hugging_face_cache()
    repository = hub.repository(reference.repo)
    model = choose(repository.sets, reference.which, reference.repo)
    if not model.is_whole:
        raise PullFailed(
            f"{repository.name} has only {len(model.files)} of the {model.parts} files of {model.name}"
        )
    folder = cache / f"models--{repository.name.replace('/', '--')}"
    files = [repository.files[name] for name in model.files]
    blobs = [folder / "blobs" / file.sha256 for file in files]
    missing = sum(missing_bytes(file, blob) for file, blob in zip(files, blobs, strict=True))
    _check_disk(cache, missing, str(reference))
    paths = []
    for file, blob in zip(files, blobs, strict=True):

        def tell(doing: str, done: int, total: int, file: HubFile = file) -> None:
            progress(file, doing, done, total)

        _fetch(hub, repository, file, blob, tell)
        paths.append(_link(hub, repository, file, blob, cache))
    name = f"{repository.name}:{_shortest(repository, model)}"
    return Pulled(name, tuple(paths), repository.size_of(model), missing)


def _fetch(hub: Hub, repository: Repository, file: HubFile, blob: Path, progress: Progress) -> None:
    try:
        with plain_errors(repository.name, hub.endpoint):
            fetch(hub.url(repository, file), file, blob, headers=hub.headers(), progress=progress)
    except OSError as error:
        raise PullFailed(
            f"{blob.parent} can't be written: {error.strerror or error}; HF_HUB_CACHE names another cache"
        ) from error


def _link(hub: Hub, repository: Repository, file: HubFile, blob: Path, cache: Path) -> Path:
    """Give the blob its name. The hub's own client does it, who finds the blob and downloads nothing."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download
    from huggingface_hub.errors import HFValidationError, HTTPError

    with plain_errors(repository.name, hub.endpoint):
        try:
            named = get_hf_file_metadata(hub.url(repository, file), token=hub.token, endpoint=hub.endpoint)
            # The client makes paths of both.
            if named.etag is None or not SHA256.fullmatch(named.etag):
                raise ValueError(f"{named.etag!r} is no SHA-256")
            if named.commit_hash is None or not _COMMIT.fullmatch(named.commit_hash):
                raise ValueError(f"{named.commit_hash!r} is no commit")
            path = Path(
                hf_hub_download(
                    repository.name,
                    file.name,
                    cache_dir=cache,
                    endpoint=hub.endpoint,
                    token=hub.token,
                    library_name="onceread",
                )
            )
        except OSError as error:
            if not _is_local(error):
                raise
            raise PullFailed(f"{cache} can't be written: {error.strerror or error}") from error
        except (HFValidationError, HTTPError):
            raise
        except ValueError as error:  # names that would lead out of the cache
            raise PullFailed(f"{hub.endpoint} says nonsense of {file.name}: {error}") from error
    # Where there are no links it is a copy; and the hub may have another file by now.
    if not path.samefile(blob) and sha256_of(path) != file.sha256:
        raise ChecksumWrong(f"{file.name} was changed on the hub meanwhile: pull it again")
    return path


def _is_local(error: OSError) -> bool:
    """The disk's errors, not the hub's, which are OSErrors, too."""
    return error.errno is not None and not hasattr(error, "response")


def _check_disk(cache: Path, needed: int, what: str) -> None:
    there = cache
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed and needed + _SPARE > free:
        raise DiskTooSmall(
            f"{what} takes {needed / 2**30:.2f} GiB more and {free / 2**30:.2f} GiB are free in {there}: "
            "make room, or let HF_HUB_CACHE name a folder on another disk"
        )


def _shortest(repository: Repository, model: FileSet) -> str:
    quants = [one.quant for one in repository.sets]
    return model.quant if model.quant and quants.count(model.quant) == 1 else model.files[0]
