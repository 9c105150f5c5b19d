"""What makes a state meaningless elsewhere, as one hash.

llama.cpp takes a state of other weights of the same shape, of another RoPE base or another build without a
word. So whatever it was computed with is part of every name in the store.
"""

from __future__ import annotations

import json
import logging
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blake3 import blake3

from onceread.native import stateblob
from onceread.native.backend import system_info
from onceread.native.context import Context
from onceread.native.rope import AS_TRAINED

logger = logging.getLogger(__name__)

_FORMAT = 2  # of what is hashed here


def fingerprint(context: Context, content: bytes, sample: bytes, *, exact: bool = False) -> bytes:
    """32 bytes. ``content``: the model file's digest. ``sample``: the attention of any range, for its layout.

    The layout says what ``auto`` came to: with flash attention values are not transposed.
    """
    model, params = context.model, context.params
    layout = stateblob.layout(sample)
    original = model.metadata.get(f"{model.architecture}.rope.scaling.original_context_length", "")
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "content": content.hex(),
        "architecture": model.architecture,
        "types": [params.type_k, params.type_v],
        "layout": [layout.v_trans, layout.kinds],
        "unified": True,
        "exact": exact,  # else tokens that were decoded one by one have other bits
        "window": [context.window, params.swa_full],
        # Some models have other RoPE factors for contexts beyond the one they were first trained with.
        "long_context": bool(original) and context.n_ctx > int(original),
        "rotation_disabled": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),
        "binding": version("llama-cpp-python"),
        "backend": system_info(),
        "gpu_layers": model.gpu_layers,
        "offload_kqv": params.offload_kqv,
    }
    # What is left to the model is not told of, so that states of before there was a choice stay good.
    if params.rope != AS_TRAINED:
        facts["rope"] = params.rope.facts
    if model.params.kv_overrides:
        facts["overrides"] = sorted(
            [key, type(value).__name__, value] for key, value in model.params.kv_overrides
        )
    if params.adapter is not None:
        facts["adapter"] = [model_digest(params.adapter.path, None).hex(), params.adapter.scale]
    return blake3(json.dumps(facts, sort_keys=True).encode()).digest()


def model_digest(path: Path, remembered: Path | None) -> bytes:
    """BLAKE3 of all of a model's files. ``remembered``: where digests are kept, so that each file is read once.

    A file counts as the same while its inode, size and time of change are.
    """
    parts = _parts(path)
    identity = "|".join(
        f"{part.resolve()}:{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}"
        for part in parts
        for s in [part.stat()]
    )
    file = remembered / f"{blake3(identity.encode()).hexdigest(length=16)}.digest" if remembered else None
    if file is not None:
        try:
            known = file.read_bytes()
            if len(known) == 64 and blake3(known[:32]).digest() == known[32:]:
                return known[:32]
        except OSError:
            pass
    hasher = blake3(max_threads=blake3.AUTO)
    for part in parts:
        hasher.update_mmap(part)
        hasher.update(part.stat().st_size.to_bytes(8, "little"))
    digest = hasher.digest()
    if file is not None:
        try:
            file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.touch(mode=0o600)
            file.chmod(0o600)
            file.write_bytes(digest + blake3(digest).digest())
        except OSError as error:
            logger.debug("the model's digest is not remembered: %s", error)
    return digest


def _parts(path: Path) -> list[Path]:
    split = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})\.gguf", path.name)
    if split is None:
        return [path]
    return [path.with_name(f"{split[1]}{i:05d}-of-{split[3]}.gguf") for i in range(1, int(split[3]) + 1)]
