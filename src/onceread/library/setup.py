"""What a `Llama` is made with: each of llama-cpp-python's parameters taken over, ignored or refused by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from onceread.engine.config import EngineConfig
from onceread.engine.embedding_config import EmbeddingConfig
from onceread.library.errors import InvalidParameter
from onceread.models.home import expanded
from onceread.native.adapter import Adapter
from onceread.native.context import KV_TYPES
from onceread.native.embedding import Pooling
from onceread.native.model_params import ModelParams
from onceread.native.rope import Rope
from onceread.server.loading import embedding_config, engine_config
from onceread.server.settings import Settings

IGNORED = ("no_perf", "swa_full", "op_offload")
"""Parameters that change no reply, and that the engine decides for itself."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    # name: what may be given all the same, and what to do instead
    "vocab_only": ((False,), "load the whole model: tokenize() and detokenize() work on any"),
    "attention_type": ((-1, None), "the model's own is used; leave it out"),
    "lora_base": ((None,), "an adapter goes on top of the model as it is; leave it out"),
    "numa": ((False, None), "start Python by `numactl`, which does the same for the whole process"),
    "chat_handler": ((None,), "name a format or a Jinja template by chat_format; images are not read"),
    "draft_model": ((None,), "speculative decoding is not supported; leave it out"),
    "tokenizer": ((None,), "the GGUF's own is used; give token ids as the prompt to use another"),
    "spm_infill": ((False,), "gaps are filled in the order prefix, suffix, middle; leave it out"),
}
"""Parameters that would be misleading to ignore."""

_SETTINGS = {  # of ours, by what llama-cpp-python calls them
    "n_ctx": "ctx_size",
    "n_batch": "batch_size",
    "n_threads": "threads",
    "n_threads_batch": "threads_batch",
    "n_gpu_layers": "gpu_layers",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
}
_OWN = ("parallel", "exact", "cache_ram", "cache_disk", "resident_cells", "overflow", "reuse_moved")
_RANDOM = (None, -1, 0, 0xFFFFFFFF)
POOLINGS: Mapping[int, Pooling | None] = {-1: None, 0: "none", 1: "mean", 2: "cls", 3: "last"}
_UNLIMITED = 1_000_000  # who calls a function waits for it anyway


class _Given(Settings):
    """Settings of what was given alone: no variable of the environment and no file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Setup:
    """All parameters of a `Llama`, in the terms of the layers below."""

    path: Path
    load: ModelParams
    settings: Settings
    engine: EngineConfig
    embedding: EmbeddingConfig
    chat_format: str | None
    seed: int | None  # None = random
    last_n_tokens: int
    embeds: bool  # it is to embed before all: what writes is started when it is asked to
    logits_all: bool


def setup_of(model_path: str | os.PathLike[str], given: Mapping[str, Any]) -> Setup:
    """``given``: the constructor's parameters, by name, all of them. Raises InvalidParameter, which names one."""
    path = expanded(model_path)
    if not os.path.exists(path):  # noqa: PTH110 - False also where it can't be looked at
        raise InvalidParameter(f"model_path: there is no file {path}", "model_path")
    for name, (allowed, instead) in REFUSED.items():
        if not any(given[name] is value or given[name] == value for value in allowed):
            raise InvalidParameter(f"{name} is not supported: {instead}", name)
    _check_types(given)
    settings = _settings(given)
    pooling = _pooling(given["pooling_type"])
    return Setup(
        path=path,
        load=_model_params(given),
        settings=settings,
        engine=replace(engine_config(settings), **_context(given)),
        embedding=replace(embedding_config(settings), pooling=pooling, unsaid="none"),
        chat_format=given["chat_format"],
        seed=seed_of(given["seed"]),
        last_n_tokens=given["last_n_tokens_size"],
        embeds=bool(given["embedding"]),
        logits_all=bool(given["logits_all"]),
    )


def with_cache(setup: Setup, **tiers: Any) -> Setup:
    """The same with other tiers: ``cache_ram``, ``cache_dir``, ``cache_disk``. Raises InvalidParameter."""
    said = {name: getattr(setup.settings, name) for name in setup.settings.model_fields_set}
    if tiers.get("cache_dir") is not None:
        tiers["no_disk_cache"] = False
        if said.get("cache_ram") == 0:
            said["cache_ram"] = None  # what is written to disk waits in RAM
    settings = _validated({**said, **tiers})
    config = engine_config(settings)
    engine = replace(
        setup.engine, cache_ram=config.cache_ram, cache_dir=config.cache_dir, cache_disk=config.cache_disk
    )
    return replace(setup, settings=settings, engine=engine)


def seed_of(given: int | None) -> int | None:
    """None where llama-cpp-python takes a seed for "choose one"."""
    return None if given is None or given in _RANDOM else int(given) & 0xFFFFFFFF


def defaults(constructor: Callable[..., Any]) -> dict[str, Any]:
    """What a constructor's parameters are when nothing is said."""
    found = inspect.signature(constructor).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


def _settings(given: Mapping[str, Any]) -> Settings:
    said: dict[str, Any] = {ours: given[theirs] for theirs, ours in _SETTINGS.items()}
    said |= {name: given[name] for name in _OWN}
    said["ctx_size"] = said["ctx_size"] or None  # 0 is "choose yourself", too
    said["threads"] = said["threads"] or None
    said["threads_batch"] = said["threads_batch"] or None
    for name in ("cache_type_k", "cache_type_v"):
        said[name] = _kv_type(said[name], "type_" + name[-1])
    flash = given["flash_attn"]
    said["flash_attn"] = "auto" if flash is None else "on" if flash else "off"
    folder = given["cache_dir"]
    said |= {"cache_dir": Path(folder)} if folder is not None else {"no_disk_cache": True}
    said["queue_limit"] = _UNLIMITED
    _check_together(given)
    return _validated(said)


def _check_types(given: Mapping[str, Any]) -> None:
    """Of what nobody else looks at before it is used."""
    overrides = given["kv_overrides"]
    if overrides is not None and not (
        isinstance(overrides, Mapping) and all(isinstance(key, str) for key in overrides)
    ):
        raise InvalidParameter("kv_overrides: must be a dict with strings as its keys", "kv_overrides")
    if not isinstance(given["chat_format"], str | None):
        raise InvalidParameter("chat_format: must be a string", "chat_format")
    if not isinstance(given["last_n_tokens_size"], int):
        raise InvalidParameter("last_n_tokens_size: must be a whole number", "last_n_tokens_size")


def _check_together(given: Mapping[str, Any]) -> None:
    """Settings says this in words of the command line."""
    if given["cache_dir"] is None and given["cache_disk"] is not None:
        raise InvalidParameter("cache_disk needs a cache_dir", "cache_disk")
    if given["exact"]:
        for name, what in (("flash_attn", "off"), ("n_gpu_layers", "0"), ("reuse_moved", "off")):
            if given[name]:
                raise InvalidParameter(f"exact needs {name} to be {what}", name)


def _validated(said: Mapping[str, Any]) -> Settings:
    try:
        return _Given(**{name: value for name, value in said.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        ours = str(first["loc"][0]) if first["loc"] else ""
        name = next((theirs for theirs, setting in _SETTINGS.items() if setting == ours), ours)
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        raise InvalidParameter(f"{name}: {message}" if name else message, name or None) from None


def _kv_type(value: int | str | None, name: str) -> str | None:
    if value is None or (isinstance(value, str) and value in KV_TYPES):
        return value
    for known, number in KV_TYPES.items():
        if value == number:
            return known
    raise InvalidParameter(f"{name}: must be one of {', '.join(KV_TYPES)}, or ggml's number of it", name)


def _pooling(value: int) -> Pooling | None:
    if value not in POOLINGS:
        raise InvalidParameter("pooling_type: must be none, mean, cls or last (0 to 3)", "pooling_type")
    return POOLINGS[value]


def _model_params(given: Mapping[str, Any]) -> ModelParams:
    overrides = given["kv_overrides"] or {}
    return ModelParams(
        split_mode=given["split_mode"],
        main_gpu=given["main_gpu"],
        tensor_split=tuple(given["tensor_split"] or ()),
        use_mmap=given["use_mmap"],
        use_mlock=given["use_mlock"],
        kv_overrides=tuple(overrides.items()),
    )


def _context(given: Mapping[str, Any]) -> dict[str, Any]:
    scaling = given["rope_scaling_type"]
    path = given["lora_path"]
    return {
        "rope": Rope(
            scaling_type=-1 if scaling is None else scaling,
            freq_base=given["rope_freq_base"],
            freq_scale=given["rope_freq_scale"],
            yarn_ext_factor=given["yarn_ext_factor"],
            yarn_attn_factor=given["yarn_attn_factor"],
            yarn_beta_fast=given["yarn_beta_fast"],
            yarn_beta_slow=given["yarn_beta_slow"],
            yarn_orig_ctx=given["yarn_orig_ctx"],
        ),
        "adapter": None if path is None else Adapter(expanded(path), given["lora_scale"]),
        "micro_batch": given["n_ubatch"] if given["n_ubatch"] < given["n_batch"] else None,
        "offload_kqv": given["offload_kqv"],
    }
