"""A GGUF model, loaded: its weights, its vocabulary, what its metadata says."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

from onceread.native import logs
from onceread.native.backend import extra_buffers_safe, start
from onceread.native.errors import LoadCancelled, ModelInvalid, ModelNotFound, ModelUnsupported
from onceread.native.library import lib
from onceread.native.model_params import ModelParams
from onceread.native.vocabulary import Vocabulary

Progress = Callable[[float], bool | None]
"""Called with the share loaded, 0 to 1, on the loading thread. Returning False stops the load."""

_MAGIC = b"GGUF"
_DEFAULT_PARAMS = ModelParams()
_LOAD_PLAIN = 0  # LLAMA_LOAD_MODE_NONE: the file is read, not mapped


class MemoryKind(Enum):
    """How a model's memory of its prompt can be cut and joined."""

    PLAIN = "plain attention"  # any prefix of a sequence can be shared or kept
    # The others only at checkpoints. llama.cpp gives cells that have left a sequence's window to other
    # sequences, also in a full-size cache: what stands before the window can be gone at any time.
    WINDOWED = "sliding window"
    RECURRENT = "recurrent or hybrid"


class Model:
    """Owns the weights. Use :meth:`load`; close it after every context that was made from it."""

    def __init__(self, handle: Any, path: Path, gpu_layers: int, params: ModelParams) -> None:
        self._m: Any = handle
        self.params = params
        self.path = path
        self.gpu_layers = gpu_layers
        self.metadata: dict[str, str] = _metadata(handle)
        self.architecture: str = self.metadata.get("general.architecture", "unknown")
        self.name: str = path.name.removesuffix(".gguf")
        self.vocab = Vocabulary(lib.llama_model_get_vocab(handle))
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(handle)
        self.n_embd: int = lib.llama_model_n_embd(handle)
        self.n_params: int = lib.llama_model_n_params(handle)
        self.size_bytes: int = lib.llama_model_size(handle)
        self.description: str = _string(lib.llama_model_desc, handle)
        template = lib.llama_model_chat_template(handle, None)
        self.chat_template: str | None = template.decode("utf-8", errors="replace") if template else None
        self.memory_kind = _memory_kind(handle)
        self.is_hybrid: bool = lib.llama_model_is_hybrid(handle)
        self.window: int = lib.llama_model_n_swa(handle)  # tokens of a sliding window, 0 if there is none

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        gpu_layers: int = 0,
        progress: Progress | None = None,
        params: ModelParams = _DEFAULT_PARAMS,
        weights: bool = True,
    ) -> Model:
        """Load a GGUF file (for a split model, its first part).

        ``gpu_layers``: layers to put on a GPU if the binding was built with one; -1 is all.
        ``weights=False`` reads all but the weights, in a moment and without their memory: to look at the model,
        never to compute, which would end the process.
        Raises ModelNotFound, ModelInvalid, ModelUnsupported, LoadCancelled.
        """
        path = Path(path)
        _check_file(path)
        start()
        logs.forget_errors()
        cancelled = False
        raised: BaseException | None = None

        def on_progress(share: float, _user_data: Any) -> bool:
            nonlocal cancelled, raised
            try:
                cancelled = progress is not None and progress(share) is False
            except BaseException as error:  # noqa: BLE001 - must not cross into C; raised again below
                raised = error
                cancelled = True
            return not cancelled

        p = lib.llama_model_default_params()
        p.use_extra_bufts = extra_buffers_safe()
        p.n_gpu_layers = gpu_layers if gpu_layers >= 0 else 0x7FFFFFFF
        kept_alive = params.apply(p)
        if not weights:
            # Both aborts the process with the weights' memory left out: a mapped file, and buffers to repack into.
            p.no_alloc = True
            p.load_mode = _LOAD_PLAIN
            p.use_extra_bufts = False
            p.n_gpu_layers = 0
        callback = lib.llama_progress_callback(on_progress)
        p.progress_callback = callback
        handle = lib.llama_model_load_from_file(os.fsencode(path), p)
        del kept_alive
        if raised is not None:
            if handle:
                lib.llama_model_free(handle)
            raise raised
        if not handle:
            if cancelled:
                raise LoadCancelled(f"loading {path.name} was stopped")
            reason = logs.last_error() or "no reason given"
            raise ModelInvalid(f"{path} is not a model that can be loaded: {reason}")
        if lib.llama_model_has_encoder(handle) or not lib.llama_model_has_decoder(handle):
            lib.llama_model_free(handle)
            raise ModelUnsupported(f"{path.name} has an encoder; only decoder models can generate text here")
        try:
            return cls(handle, path, gpu_layers, params)
        except BaseException:
            lib.llama_model_free(handle)
            raise

    def kv_bytes_per_token(self, bytes_k: float = 2.0, bytes_v: float = 2.0) -> float:
        """What one token takes in the KV cache, by the metadata; an upper bound for hybrid models.

        ``bytes_k``, ``bytes_v``: bytes of one cached number (2 for f16).
        """
        layers = self._number("block_count", 32)
        heads = self.heads
        kv_heads = self._number("attention.head_count_kv", heads)
        width = self._number("embedding_length", 4096) // max(heads, 1)
        key = self._number("attention.key_length", width)
        value = self._number("attention.value_length", width)
        return layers * kv_heads * (key * bytes_k + value * bytes_v)

    @property
    def heads(self) -> int:
        """Attention heads of a layer, the most that one has."""
        return self._number("attention.head_count", 1)

    @property
    def experts(self) -> int:
        """Experts of a layer that are chosen from; 0 if the model has none."""
        return self._number("expert_count", 0)

    def _number(self, key: str, default: int) -> int:
        text = self.metadata.get(f"{self.architecture}.{key}", "")
        numbers = [int(n) for n in re.findall(r"\d+", text)]  # some models list a number for each layer
        return max(numbers, default=default)

    @property
    def handle(self) -> Any:
        """The C pointer, for contexts."""
        if not self._m:
            raise RuntimeError("the model is closed")
        return self._m

    def close(self) -> None:
        """Free the weights. Safe to call again."""
        if self._m:
            lib.llama_model_free(self._m)
            self._m = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _check_file(path: Path) -> None:
    # llama.cpp's own message for these is a page of log; most mistakes are one of four.
    if not path.exists():
        raise ModelNotFound(f"no such file: {path}")
    if not path.is_file():
        raise ModelInvalid(f"{path} is not a file; give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelNotFound(f"{path} can't be read: {error.strerror}") from error
    if magic != _MAGIC:
        raise ModelInvalid(f"{path} is not a GGUF file (it does not start with 'GGUF'); download it again")


def _memory_kind(handle: Any) -> MemoryKind:
    if lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle):
        return MemoryKind.RECURRENT
    return MemoryKind.WINDOWED if lib.llama_model_n_swa(handle) > 0 else MemoryKind.PLAIN


def _string(function: Any, *args: Any) -> str:
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = function(*args, buffer, size)
        if n < size:
            return buffer.value.decode("utf-8", errors="replace")
        size = n + 1


def _metadata(handle: Any) -> dict[str, str]:
    found = {}
    for i in range(lib.llama_model_meta_count(handle)):
        key = _string(lib.llama_model_meta_key_by_index, handle, i)
        found[key] = _string(lib.llama_model_meta_val_str_by_index, handle, i)
    return found
