"""The options that `onceread chat` and `onceread complete` share: whom to talk to, and how a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onceread.cli.errors import CommandError
from onceread.cli.option_types import SERVER
from onceread.cli.option_types import File as File
from onceread.cli.option_types import Switch as Switch
from onceread.cli.option_types import Text as Text
from onceread.cli.option_types import Texts as Texts
from onceread.cli.option_types import Url as Url
from onceread.cli.options import option
from onceread.cli.terminal.connection import Connection, to_model, to_server
from onceread.server.settings import Settings, SettingsError, field_meta, load_settings

REPLY = "The reply"


ApiKey = Annotated[
    Text,
    typer.Option(
        "--api-key",
        metavar="SECRET",
        help="better in the variable ONCEREAD_KEY",
        envvar="ONCEREAD_KEY",
        show_envvar=False,
        rich_help_panel=SERVER,
    ),
]
ModelOption = Annotated[
    Text,
    typer.Option(
        "--model", metavar="FILE|NAME", help="GGUF file; with --url, the name there", rich_help_panel=SERVER
    ),
]
Set = Annotated[
    Texts,
    typer.Option("--set", metavar="NAME=VALUE", help="any option of a request", rich_help_panel=REPLY),
]
Temperature = Annotated[
    Text, typer.Option("--temperature", metavar="T", help="0 is greedy", rich_help_panel=REPLY)
]
MaxTokens = Annotated[
    Text, typer.Option("--max-tokens", metavar="N", help="longest reply", rich_help_panel=REPLY)
]
Seed = Annotated[Text, typer.Option("--seed", metavar="N", help="for the sampling", rich_help_panel=REPLY)]

ChatTemplate = Annotated[Text, option("chat_template")]
GpuLayers = Annotated[Text, option("gpu_layers")]
CtxSize = Annotated[Text, option("ctx_size")]
BatchSize = Annotated[Text, option("batch_size")]
Threads = Annotated[Text, option("threads")]
ThreadsBatch = Annotated[Text, option("threads_batch")]
CacheTypeK = Annotated[Text, option("cache_type_k")]
CacheTypeV = Annotated[Text, option("cache_type_v")]
FlashAttn = Annotated[Text, option("flash_attn")]
Overflow = Annotated[Text, option("overflow")]
Exact = Annotated[Switch, option("exact")]
CacheRam = Annotated[Text, option("cache_ram")]
CacheDisk = Annotated[Text, option("cache_disk")]
CacheDir = Annotated[Text, option("cache_dir")]
NoDiskCache = Annotated[Switch, option("no_disk_cache")]
LogLevel = Annotated[Text, option("log_level")]
Config = Annotated[
    File, typer.Option("--config", metavar="FILE", help="settings as TOML", rich_help_panel="Server")
]

_LOADING = (
    "chat_template",
    "gpu_layers",
    "ctx_size",
    "batch_size",
    "threads",
    "threads_batch",
    "cache_type_k",
    "cache_type_v",
    "flash_attn",
    "overflow",
    "exact",
    "cache_ram",
    "cache_disk",
    "cache_dir",
    "no_disk_cache",
    "log_level",
)


def connect(params: Mapping[str, Any], model: str | None) -> Connection:
    """To the server that was named, else to the model in ``model`` or ``--model``. Raises CommandError."""
    url, named = params["url"], params["model_option"]
    if model is not None and named is not None:
        raise CommandError(f"two models: {model} and --model {named}; give one")
    given = [name for name in _LOADING if params[name] is not None]
    if url is not None:
        if given:
            raise CommandError(
                f"{field_meta(given[0])[1]} is for a model in this process: leave out --url, or it"
            )
        return to_server(url, params["api_key"], named or model)
    flags = {name: params[name] for name in given}
    if model is not None or named is not None:
        flags["model"] = model or named
    return to_model(_settings(flags, params["config"]))


def reply_options(params: Mapping[str, Any], *, any_name: bool, raw: bool = False) -> dict[str, Any]:
    """What a reply is asked for with. Raises CommandError."""
    from onceread.cli.terminal.generation import OptionInvalid, parse_option, parse_pairs, unknown

    try:
        found = parse_pairs(params["set"] or (), any_name=any_name, raw=raw)
        for name in ("temperature", "max_tokens", "seed"):
            if params[name] is not None:
                found[name] = parse_option(name, params[name], raw=raw)
    except OptionInvalid as error:
        raise CommandError(str(error)) from None
    for name in found:
        if problem := unknown(name, raw=raw):
            note = f"onceread: {problem} It is sent all the same, for the server to judge."
            print(note, file=sys.stderr)  # noqa: T201
    return found


def _settings(flags: Mapping[str, object], config: Path | None) -> Settings:
    try:
        return load_settings(flags, config=config)
    except SettingsError as error:
        raise CommandError(str(error)) from None
