"""Every setting of the server, from flags, ``ONCEREAD_*`` variables and a TOML file, checked in one place.

A flag wins over the environment, the environment over the file, the file over the defaults.
What is wrong is said in one line that names the place it was set.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from onceread.chat.builtin import is_inline
from onceread.models.home import expanded
from onceread.server.setting_values import (
    ApiKey,
    check_admin_key,
    check_cache_disk,
    check_cache_ram,
    check_host,
    check_origin,
    is_loopback,
    parse_keys,
    parse_list,
    parse_size,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "ONCEREAD_"

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(Exception):
    """A setting that can't be used. The message is one line that names the flag, variable or key."""


def _setting(
    group: str,
    help: str,  # noqa: A002
    *,
    metavar: str = "",
    flag: str = "",
    hidden: bool = False,
    **limits: Any,
) -> Any:
    """A field with what the command line and the documentation say of it; --help leaves out what is ``hidden``."""
    extra: dict[str, Any] = {"group": group, "metavar": metavar, "flag": flag, "hidden": hidden}
    return Field(description=help, json_schema_extra=extra, **limits)


class Settings(BaseSettings):
    """All settings. ``Settings(...)`` takes keywords and the environment; `load_settings` adds the file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
        validate_default=False,
    )

    model: Path | None = _setting(
        "Model and context", "file, or name of `models ls`", metavar="FILE|NAME", default=None
    )
    model_name: str | None = _setting(
        "Model and context",
        "name in the API (default: the file's)",
        metavar="NAME",
        default=None,
        min_length=1,
    )
    chat_template: str | None = _setting(
        "Model and context",
        "file, name or Jinja for the GGUF's",
        metavar="FILE|NAME",
        default=None,
        min_length=1,
    )
    gpu_layers: int = _setting(
        "Model and context", "layers on the GPU, -1 = all", metavar="N", default=0, ge=-1
    )

    embedding_model: Path | None = _setting(
        "Model and context",
        "GGUF for embeddings (default: --model)",
        metavar="FILE",
        hidden=True,
        default=None,
    )
    embedding_pooling: Literal["mean", "cls", "last"] | None = _setting(
        "Model and context",
        "mean, cls, last (default: the file's, or mean)",
        metavar="HOW",
        hidden=True,
        default=None,
    )
    embedding_ctx_size: int | None = _setting(
        "Model and context", "tokens of one input", metavar="N", hidden=True, default=None, ge=16
    )

    ctx_size: int | None = _setting(
        "Model and context", "total cells (default: by free memory)", metavar="N", default=None, ge=64
    )
    parallel: int = _setting(
        "Model and context", "requests decoding together", metavar="N", default=4, ge=1, le=128
    )
    batch_size: int = _setting(
        "Model and context", "prompt tokens per slice", metavar="N", default=512, ge=32, le=16384
    )
    threads: int | None = _setting(
        "Model and context", "for decoding (default: by cores)", metavar="N", default=None, ge=1, le=512
    )
    threads_batch: int | None = _setting(
        "Model and context", "for prefill (default: by cores)", metavar="N", default=None, ge=1, le=512
    )
    cache_type_k: CacheType = _setting(
        "Model and context", "keys: f16, q8_0, q4_0, ...", metavar="TYPE", default="f16"
    )
    cache_type_v: CacheType = _setting(
        "Model and context", "values: the same types", metavar="TYPE", default="f16"
    )
    flash_attn: FlashAttention = _setting(
        "Model and context", "auto, on or off", metavar="WHEN", default="auto"
    )
    overflow: Literal["error", "shift"] = _setting(
        "Model and context", "error, or shift: drop old turns", metavar="HOW", default="error"
    )
    reuse_moved: bool = _setting("Model and context", "approximate: see docs/moved.md", default=False)
    reuse_moved_min: int = _setting(
        "Model and context", "tokens of a moved stretch", metavar="N", hidden=True, default=64, ge=8
    )
    exact: bool = _setting("Model and context", "warm replies to the last bit; slower", default=False)
    resident_cells: int = _setting(
        "Model and context", "kept there by finished chats", metavar="N", default=2048, ge=0
    )

    host: Annotated[str, AfterValidator(check_host)] = _setting(
        "Server", "address to bind", metavar="HOST", default="127.0.0.1"
    )
    port: int = _setting("Server", "0 = any that is free", metavar="N", default=8000, ge=0, le=65535)
    keep_alive: float = _setting(
        "Server", "seconds for idle connections", metavar="S", default=300.0, gt=0, allow_inf_nan=False
    )
    shutdown_grace: float = _setting(
        "Server", "seconds to finish when stopped", metavar="S", default=5.0, ge=0, le=3600
    )
    log_level: LogLevel = _setting("Server", "debug, info, warning, error", metavar="LEVEL", default="info")

    api_keys: Annotated[tuple[ApiKey, ...], NoDecode, BeforeValidator(parse_keys)] = _setting(
        "Access and limits", "may be given again", metavar="NAME=SECRET", flag="--api-key", default=()
    )
    admin_key: Annotated[SecretStr, AfterValidator(check_admin_key)] | None = _setting(
        "Access and limits", "sees every key's cache", metavar="SECRET", default=None, min_length=1
    )
    allow_open: bool = _setting("Access and limits", "any host without a key", default=False)
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(check_origin)], ...], NoDecode, BeforeValidator(parse_list)
    ] = _setting(
        "Access and limits", "web pages' origin, repeatable", metavar="URL", flag="--cors-origin", default=()
    )

    max_body_bytes: Annotated[int, BeforeValidator(parse_size)] = _setting(
        "Access and limits", "largest request body", metavar="SIZE", default=16 * 1024**2, ge=1024
    )
    max_tokens_limit: int | None = _setting(
        "Access and limits", "longest reply (default: none)", metavar="N", default=None, ge=1
    )
    queue_limit: int = _setting(
        "Access and limits", "waiting requests before a 503", metavar="N", default=256, ge=1
    )

    cache_ram: Annotated[int, BeforeValidator(parse_size), AfterValidator(check_cache_ram)] | None = _setting(
        "Cache", "in RAM (default: by free memory)", metavar="SIZE", default=None, ge=0
    )
    cache_disk: Annotated[int, BeforeValidator(parse_size), AfterValidator(check_cache_disk)] | None = (
        _setting("Cache", "on disk (default: by free space)", metavar="SIZE", default=None)
    )
    cache_dir: Path = _setting(
        "Cache",
        "where it is kept",
        metavar="DIR",
        default_factory=lambda: platformdirs.user_cache_path("onceread"),
    )
    no_disk_cache: bool = _setting("Cache", "keep nothing on disk", default=False)
    responses_keep: float = _setting(
        "Cache",
        "days that stored responses stay unused",
        metavar="DAYS",
        hidden=True,
        default=30.0,
        gt=0,
        le=36500,
        allow_inf_nan=False,
    )
    responses_size: Annotated[int, BeforeValidator(parse_size)] = _setting(
        "Cache", "all stored responses together", metavar="SIZE", hidden=True, default=256 * 1024**2, ge=65536
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_none(cls, values: object) -> object:
        """None is "not said", in every source."""
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if not self.api_keys and not self.allow_open and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines: "
                "give --api-key NAME=SECRET, or --allow-open if anyone may use it"
            )
        admin = self.admin_key.get_secret_value() if self.admin_key else None
        if any(key.secret.get_secret_value() == admin for key in self.api_keys):
            raise ValueError("admin_key is also the secret of an API key: give it one of its own")
        if self.cache_ram == 0 and not self.no_disk_cache:
            raise ValueError(
                "cache_ram 0 needs no_disk_cache: what is written to disk waits in RAM; "
                "give at least 64MiB, or --no-disk-cache for no cache behind the context"
            )
        no_flash = "--exact" if self.exact else "--flash-attn off"
        if (self.exact or self.flash_attn == "off") and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise ValueError(
                f"cache_type_v {self.cache_type_v} needs flash attention: leave out {no_flash}, or use f16"
            )
        if self.exact and self.flash_attn == "on":
            raise ValueError("exact needs flash attention off: leave out --flash-attn on, or --exact")
        if self.exact and self.reuse_moved:
            raise ValueError("exact and reuse_moved exclude each other: leave out --reuse-moved, or --exact")
        if self.exact and self.gpu_layers:
            raise ValueError("exact is for the CPU only: leave out --gpu-layers, or --exact")
        return self


def field_meta(name: str) -> tuple[str, str, str, str]:
    """What the command line shows of a setting: its group, flag, metavar and help."""
    field: FieldInfo = Settings.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    flag = str(extra["flag"]) or "--" + name.replace("_", "-")
    return str(extra["group"]), flag, str(extra["metavar"]), field.description or ""


def is_hidden(name: str) -> bool:
    """Is a setting too special for the command line's help? docs/configuration.md has it all the same."""
    extra = Settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra["hidden"])


def default_config_path() -> Path:
    """The TOML file that is read if it exists and none is named."""
    return platformdirs.user_config_path("onceread") / "config.toml"


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from all sources. Raises SettingsError, one line that names where the value came from.

    ``flags`` holds what was given on the command line; None and empty lists and tuples count as not given.
    ``environ`` is only looked at for the file's name and for error messages.
    """
    given: dict[str, Any] = {
        name: value for name, value in (flags or {}).items() if value is not None and value not in ([], ())
    }
    if config is None and environ.get(ENV_PREFIX + "CONFIG"):
        config = Path(environ[ENV_PREFIX + "CONFIG"])
    if config is not None:
        config = expanded(config)
        from_file = _read_toml(config)
    else:
        config = default_config_path()
        from_file = _read_toml(config) if config.is_file() else {}

    class WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file)

    try:
        loaded = WithFile(**given)
    except ValidationError as error:
        raise SettingsError(_one_line(error, given, from_file, config, environ)) from None
    # The plain class, so that repr, pickling and isinstance hold no surprise.
    return Settings.model_construct(_fields_set=loaded.model_fields_set, **dict(loaded))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"the configuration file {path} can't be read: {reason}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"the configuration file {path} is not valid TOML: {' '.join(str(error).split())}"
        ) from None
    for key in values:
        if key not in Settings.model_fields:
            near = difflib.get_close_matches(key.replace("-", "_"), Settings.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"unknown key {key!r} in {path}{hint}")
    for key in (
        "model",
        "embedding_model",
        "cache_dir",
        "chat_template",
    ):  # a path in the file is relative to the file
        value = values.get(key)
        if isinstance(value, str) and not (key == "chat_template" and is_inline(value)):
            beside = path.parent / expanded(value)
            # Templates and models have names, too.
            is_path = key == "cache_dir" or (key != "chat_template" and value.lower().endswith(".gguf"))
            if is_path or beside.is_file():
                values[key] = str(beside)
    return values


def _one_line(
    error: ValidationError,
    flags: Mapping[str, object],
    from_file: Mapping[str, object],
    path: Path,
    environ: Mapping[str, str],
) -> str:
    first = error.errors(include_url=False, include_input=True)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace(
        "Value should have at least 1 item after validation, not 0", "must not be empty"
    )
    message = message.replace("String should have at least 1 character", "must not be empty")
    message = re.sub(r"a valid integer, unable to parse string as an integer", "a whole number", message)
    message = re.sub(r"a valid number, unable to parse string as a number", "a number", message)
    message = re.sub(r"a valid boolean, unable to interpret input", "true or false", message)
    if not name:
        return message
    variable = ENV_PREFIX + name.upper()
    if name in flags:
        place, value = field_meta(name)[1], flags[name]
    elif variable in {key.upper() for key in environ}:
        place, value = variable, next(text for key, text in environ.items() if key.upper() == variable)
    elif name in from_file:
        place, value = f"{name!r} in {path}", from_file[name]
    else:
        return f"{name}: {message}"
    if name in ("api_keys", "admin_key"):  # secrets are not repeated
        return f"{place}: {message}"
    return (
        f"{place}: {message}, not {value!r}"
        if message.startswith("must be ") and value
        else f"{place}: {message}"
    )


CACHE_TYPES: tuple[str, ...] = get_args(CacheType)
