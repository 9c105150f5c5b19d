"""``onceread complete``: one prompt, one reply, on stdout."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from onceread.cli.errors import CommandError, one_line
from onceread.cli.terminal import model_options as options

_PROMPT = "The prompt"


def complete(
    context: typer.Context,
    words: Annotated[
        options.Texts,
        typer.Argument(metavar="[MODEL] [PROMPT]...", help="a first word that ends in .gguf is the model"),
    ] = None,
    file: Annotated[
        options.File,
        typer.Option("--file", metavar="FILE|-", help="behind PROMPT; - is stdin", rich_help_panel=_PROMPT),
    ] = None,
    as_chat: Annotated[
        bool,
        typer.Option("--chat", help="a message to answer, not a text to continue", rich_help_panel=_PROMPT),
    ] = False,
    system: Annotated[
        options.Text,
        typer.Option("--system", metavar="TEXT", help="the system prompt (--chat)", rich_help_panel=_PROMPT),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="text, usage and timings as JSON", rich_help_panel=options.REPLY),
    ] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    stop: Annotated[
        options.Texts,
        typer.Option("--stop", metavar="TEXT", help="may be given again", rich_help_panel=options.REPLY),
    ] = None,
    grammar: Annotated[
        options.File,
        typer.Option("--grammar", metavar="FILE", help="GBNF", rich_help_panel=options.REPLY),
    ] = None,
    json_schema: Annotated[
        options.File,
        typer.Option(
            "--json-schema", metavar="FILE", help="what JSON to write", rich_help_panel=options.REPLY
        ),
    ] = None,
    set: options.Set = None,  # noqa: A002 - the option's name
    url: options.Url = None,
    api_key: options.ApiKey = None,
    model_option: options.ModelOption = None,
    chat_template: options.ChatTemplate = None,
    gpu_layers: options.GpuLayers = None,
    ctx_size: options.CtxSize = None,
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    threads_batch: options.ThreadsBatch = None,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    flash_attn: options.FlashAttn = None,
    overflow: options.Overflow = None,
    exact: options.Exact = None,
    cache_ram: options.CacheRam = None,
    cache_disk: options.CacheDisk = None,
    cache_dir: options.CacheDir = None,
    no_disk_cache: options.NoDiskCache = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Continue a text, or answer one message (--chat). The prompt may also come from a file or a pipe."""
    from onceread.cli.terminal.one_shot import Prompt, constraints, read_prompt, run

    said = list(words or ())
    model = None
    if said and said[0].lower().endswith(".gguf") and context.params["model_option"] is None:
        model = said.pop(0)
    if system is not None and not as_chat:
        raise CommandError("--system is for a message: give --chat too")
    text = read_prompt(" ".join(said), file)
    limits = {**constraints(grammar, json_schema), **({"stop": stop} if stop else {})}
    connection = options.connect(context.params, model)
    with closing(connection):
        given = options.reply_options(context.params, any_name=connection.remote, raw=not as_chat)
        reply = {**given, **limits}
        if callable(reconfigure := getattr(sys.stdout, "reconfigure", None)):
            reconfigure(errors="replace")  # what the terminal's encoding lacks
        try:
            run(connection, Prompt(text, as_chat, system), reply, as_json=as_json)
        except KeyboardInterrupt:
            sys.stdout.flush()
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever reads has seen enough; click ends quietly
            raise
        except connection.problems as error:
            raise CommandError(one_line(error)) from error
