"""Opening the store for a context: its sizes by the machine, its names by everything that shapes a state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from onceread.cache.contract import MIN_MEMORY
from onceread.cache.cuts import Cutter
from onceread.cache.disk import DiskTier
from onceread.cache.errors import DiskUnusable
from onceread.cache.names import spell
from onceread.cache.store import Store
from onceread.engine.config import EngineConfig
from onceread.engine.defaults import default_disk_budget
from onceread.engine.fingerprint import fingerprint, model_digest
from onceread.native import stateblob
from onceread.native.context import Context
from onceread.native.errors import StateLayoutUnknown
from onceread.native.model import MemoryKind

logger = logging.getLogger(__name__)


def open_store(
    context: Context, config: EngineConfig, sample: bytes, wake: Callable[[], None]
) -> Store | None:
    """The store of a context, or None if it is off or this model's state can't be cut.

    ``sample``: the attention of any range in the context. ``wake`` is called when something was read from disk.
    """
    model = context.model
    if config.cache_ram == 0:
        return None
    try:
        stateblob.layout(sample)
    except StateLayoutUnknown as error:
        logger.warning("no cache in RAM or on disk: this model's state can't be cut (%s)", error)
        return None
    vocab = model.vocab
    empty = np.fromiter((not piece for piece in vocab.pieces), dtype=np.bool_, count=vocab.size)
    folder = config.cache_dir
    content = bytes(32)  # in RAM there is but one model
    if folder is not None:
        content = model_digest(model.path, folder / "digests")
    identity = fingerprint(context, content, sample, exact=config.exact)
    label = f"{model.name} {context.params.type_k}/{context.params.type_v}"
    disk, problem = None, None
    if folder is not None:
        try:
            disk = DiskTier(folder, _disk_budget(config, folder), identity, label)
        except (DiskUnusable, OSError) as error:
            problem = str(error)
            logger.error("the disk cache is off, the server goes on from RAM: %s", problem)
    return Store(
        fingerprint=identity,
        label=label,
        spelled=spell(vocab.pieces, vocab.control_mask | empty),
        cutter=Cutter(vocab.eog_tokens),
        cut=stateblob.cut,
        checkpointed=model.memory_kind is not MemoryKind.PLAIN,
        memory_bytes=_memory_budget(context, config),
        disk=disk,
        disk_problem=problem,
        wake=wake,
    )


def _memory_budget(context: Context, config: EngineConfig) -> int:
    if config.cache_ram is not None:
        return config.cache_ram
    # The model's pages are mapped, so the system counts them as free; they had better stay.
    free = psutil.virtual_memory().available - context.model.size_bytes
    return max(MIN_MEMORY, int(free / 4))


def _disk_budget(config: EngineConfig, folder: Path) -> int:
    return default_disk_budget(folder) if config.cache_disk is None else config.cache_disk
