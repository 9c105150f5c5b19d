"""Names: hashes that say exactly which tokens, of which model and whose, a chunk is the state of.

    root  = BLAKE3(fingerprint + namespace)
    name  = BLAKE3(root + all tokens from position 0 to the chunk's end)
    checkpoint's name = BLAKE3(a tag + the name of the prefix that it belongs to)

A name depends on the tokens and not on where other cuts fall, so two processes that cut differently, or one
that splits a chunk, still agree on every name behind the cut.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

_CHECKPOINT = b"onceread checkpoint\0"  # no prefix's name is made from this: those begin with a root, a hash
_CONTROL = b"\xff"  # never part of valid UTF-8
# Before the spelled tokens of a chunk that was given as token ids: no text may be matched against it.
NOT_TEXT = _CONTROL + b"\xff\xff\xff\xff"


def namespace_id(namespace: str) -> bytes:
    """A namespace's identity in files: its hash, since it may hold what a client wants kept to itself."""
    return blake3(b"onceread namespace\0" + namespace.encode()).digest()


def root_name(fingerprint: bytes, namespace: bytes) -> bytes:
    """The name of the empty prefix."""
    assert len(fingerprint) == len(namespace) == 32
    return blake3(fingerprint + namespace).digest()


def prefix_name(root: bytes, tokens: bytes) -> bytes:
    """The name of a prefix, given all its tokens as int32, little endian."""
    return blake3(root + tokens).digest()


def checkpoint_name(prefix: bytes) -> bytes:
    """The name of the checkpoint that belongs to the end of a prefix, given the prefix's name."""
    return blake3(_CHECKPOINT + prefix).digest()


def spell(pieces: list[bytes], opaque: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[bytes]:
    """What each token of a vocabulary is in the text index: its bytes, or for opaque ones a mark and the id.

    ``opaque``: tokens that are no text, or have no bytes, and match only themselves.
    """
    return [
        _CONTROL + token.to_bytes(4, "little") if hidden else piece
        for token, (piece, hidden) in enumerate(zip(pieces, opaque, strict=True))
    ]


def readable(spelled: bytes) -> str:
    """Spelled bytes as text for people: control tokens and broken characters left out."""
    text = b""
    while spelled:
        before, mark, rest = spelled.partition(_CONTROL)
        text += before
        spelled = rest[4:] if mark else b""
    return text.decode("utf-8", errors="ignore")
