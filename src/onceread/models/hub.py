"""What a repository of the Hugging Face Hub offers: its GGUF models, and each file's size and checksum."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceread import __version__
from onceread.models.errors import ModelUnknown, PullFailed
from onceread.models.names import FileSet, file_sets

if TYPE_CHECKING:
    from huggingface_hub import HfApi

DEFAULT_ENDPOINT = "https://huggingface.co"
SHA256 = re.compile("[0-9a-fA-F]{64}")
_TIMEOUT = 30.0  # seconds for an answer to begin


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str  # its path there
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as it is now."""

    name: str
    commit: str
    sets: list[FileSet]  # its models
    files: dict[str, HubFile]

    def size_of(self, model: FileSet) -> int:
        return sum(self.files[name].size for name in model.files)


class Hub:
    """One endpoint, as one person sees it."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        """By default HF_ENDPOINT, and the token of HF_TOKEN or of `hf auth login`."""
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self.token = token

    def repository(self, name: str) -> Repository:
        """Raises ModelUnknown if it is not there, PullFailed."""
        with plain_errors(name, self.endpoint), _understood(name, self.endpoint):
            info = self._api().model_info(name, files_metadata=True, timeout=_TIMEOUT)
            files = {
                one.rfilename: _hub_file(one.rfilename, one.lfs.size, one.lfs.sha256)
                for one in info.siblings or []
                if one.lfs is not None
                and one.rfilename.lower().endswith(".gguf")
                and _is_relative(one.rfilename)
            }
        if info.sha is None:
            raise PullFailed(f"{self.endpoint} does not say which commit of {name} is the newest")
        return Repository(name, str(info.sha), file_sets(files), files)

    def url(self, repository: Repository, file: HubFile) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repository.name, file.name, revision=repository.commit, endpoint=self.endpoint)

    def headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers(token=self.token, library_name="onceread", library_version=__version__)

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(
            endpoint=self.endpoint, token=self.token, library_name="onceread", library_version=__version__
        )


def _hub_file(name: str, size: object, sha256: str) -> HubFile:
    """Raises ValueError for what can be no size and no checksum, which names a file on our disk."""
    if not isinstance(size, int) or size < 0 or not SHA256.fullmatch(sha256):
        raise ValueError(f"{name} has no size, or no SHA-256")
    return HubFile(name, size, sha256.lower())


def _is_relative(name: str) -> bool:
    """A path that stays inside of where it is put, whatever the hub says."""
    return (
        not name.startswith(("/", "\\"))
        and ".." not in name.replace("\\", "/").split("/")
        and name.isprintable()
    )


@contextmanager
def _understood(repo: str, endpoint: str) -> Iterator[None]:
    """What the hub's client, and what looks at its answer, raise where the answer is none."""
    from huggingface_hub.errors import HFValidationError, HTTPError

    try:
        yield
    except (HFValidationError, HTTPError):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PullFailed(
            f"{endpoint} does not answer about {repo} as the hub does: check HF_ENDPOINT ({_reason(error)})"
        ) from error


@contextmanager
def plain_errors(repo: str, endpoint: str) -> Iterator[None]:
    """What the hub's client raises, as one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise PullFailed(
            f"{repo} is gated: accept its terms at {endpoint}/{repo} and give a token of your account in HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelUnknown(
            f"there is no {repo} at {endpoint}, or it is private: check the name, or give a token in HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PullFailed(
                f"{endpoint} refuses {repo} ({status}): check the token in HF_TOKEN, and its rights"
            ) from error
        if status == 404:
            raise ModelUnknown(f"{endpoint} does not have {error.response.url.path}") from error
        raise PullFailed(f"{endpoint} answers {status} for {repo}: try again later") from error
    except errors.OfflineModeIsEnabled as error:
        raise PullFailed("HF_HUB_OFFLINE is set: unset it to download") from error
    except errors.HFValidationError as error:
        raise ModelUnknown(f"{repo} can't be the name of a repository") from error
    except errors.HTTPError as error:
        raise PullFailed(
            f"{endpoint} can't be reached ({_reason(error)}); what was downloaded is kept: try again to go on"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
