"""What can go wrong with model files, by name. Each message is one line that says what to do."""

from __future__ import annotations


class ModelFileError(Exception):
    """Base of all."""


class GgufInvalid(ModelFileError):
    """The file is no GGUF, ends too early, or says something absurd about itself."""


class ModelUnknown(ModelFileError):
    """No model on this machine, or none in a repository, has this name."""


class ModelAmbiguous(ModelFileError):
    """The name fits several models. The message lists them."""


class PullFailed(ModelFileError):
    """A model could not be downloaded."""


class ChecksumWrong(PullFailed):
    """What was downloaded is not what the hub says it is. It has been removed."""


class DiskTooSmall(PullFailed):
    """There is not enough free space for the files. Nothing was downloaded."""
