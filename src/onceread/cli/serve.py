"""``onceread serve``: read the settings, take the port, load the model, answer until told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from onceread.cli.errors import CommandError
from onceread.cli.options import option
from onceread.server.settings import SettingsError, load_settings

Text = Optional[str]  # noqa: UP045 - typer reads these at run time
Texts = Optional[list[str]]  # noqa: UP045
Switch = Optional[bool]  # noqa: UP045


def serve(
    context: typer.Context,
    model: Annotated[Text, option("model")] = None,
    model_name: Annotated[Text, option("model_name")] = None,
    chat_template: Annotated[Text, option("chat_template")] = None,
    gpu_layers: Annotated[Text, option("gpu_layers")] = None,
    embedding_model: Annotated[Text, option("embedding_model")] = None,
    embedding_pooling: Annotated[Text, option("embedding_pooling")] = None,
    embedding_ctx_size: Annotated[Text, option("embedding_ctx_size")] = None,
    ctx_size: Annotated[Text, option("ctx_size")] = None,
    parallel: Annotated[Text, option("parallel")] = None,
    batch_size: Annotated[Text, option("batch_size")] = None,
    threads: Annotated[Text, option("threads")] = None,
    threads_batch: Annotated[Text, option("threads_batch")] = None,
    cache_type_k: Annotated[Text, option("cache_type_k")] = None,
    cache_type_v: Annotated[Text, option("cache_type_v")] = None,
    flash_attn: Annotated[Text, option("flash_attn")] = None,
    overflow: Annotated[Text, option("overflow")] = None,
    reuse_moved: Annotated[Switch, option("reuse_moved")] = None,
    reuse_moved_min: Annotated[Text, option("reuse_moved_min")] = None,
    exact: Annotated[Switch, option("exact")] = None,
    resident_cells: Annotated[Text, option("resident_cells")] = None,
    host: Annotated[Text, option("host")] = None,
    port: Annotated[Text, option("port")] = None,
    keep_alive: Annotated[Text, option("keep_alive")] = None,
    shutdown_grace: Annotated[Text, option("shutdown_grace")] = None,
    log_level: Annotated[Text, option("log_level")] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", help="settings as TOML", metavar="FILE", rich_help_panel="Server"),
    ] = None,
    api_keys: Annotated[Texts, option("api_keys")] = None,
    admin_key: Annotated[Text, option("admin_key")] = None,
    allow_open: Annotated[Switch, option("allow_open")] = None,
    cors_origins: Annotated[Texts, option("cors_origins")] = None,
    max_body_bytes: Annotated[Text, option("max_body_bytes")] = None,
    max_tokens_limit: Annotated[Text, option("max_tokens_limit")] = None,
    queue_limit: Annotated[Text, option("queue_limit")] = None,
    cache_ram: Annotated[Text, option("cache_ram")] = None,
    cache_disk: Annotated[Text, option("cache_disk")] = None,
    cache_dir: Annotated[Text, option("cache_dir")] = None,
    no_disk_cache: Annotated[Switch, option("no_disk_cache")] = None,
    responses_keep: Annotated[Text, option("responses_keep")] = None,
    responses_size: Annotated[Text, option("responses_size")] = None,
) -> None:
    """Serve one model by the OpenAI API. Options are also ONCEREAD_* variables, and keys of a TOML file."""
    flags = {name: value for name, value in context.params.items() if name != "config"}
    try:
        settings = load_settings(flags, config=config)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    # What follows imports llama.cpp and the web framework: not for --help, not for a mistake in an option.
    from onceread.cli.running import run_server

    raise typer.Exit(run_server(settings))
