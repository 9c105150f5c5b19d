"""``onceread cache``: see and change what is stored, in a directory or in a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onceread.cli.cache_options import (
    CacheDir,
    Config,
    File,
    Json,
    Key,
    Of,
    Salt,
    Switch,
    Text,
    Url,
    console,
    directory_of,
    load,
    opened,
)
from onceread.cli.errors import CommandError
from onceread.cli.option_types import SERVER
from onceread.cli.options import option

app = typer.Typer(
    help="See and change what is stored: in the cache directory, or with --url in a running server.",
    no_args_is_help=True,
)

_WHAT = "What to read"
_PAGE = 1000


@app.command("ls")
def list_paths(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="at most so many", min=1)] = 50,
    every: Annotated[bool, typer.Option("--all", help="all there are")] = False,
    after: Annotated[Text, typer.Option("--after", metavar="ID", help="only those behind this one")] = None,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """List the stored paths, the last used first. A path is a text that was read, from its beginning."""
    from onceread.cli.cache_tables import print_json, show_paths

    with opened(context.params) as cache:
        found = cache.paths(_PAGE if every else min(limit, _PAGE), after)
        while found.next and (every or len(found.paths) < limit):
            more = cache.paths(_PAGE if every else min(limit - len(found.paths), _PAGE), found.next)
            found = more.model_copy(update={"paths": found.paths + more.paths})
    if as_json:
        print_json(found)
    else:
        show_paths(console(), found)


@app.command("stats")
def show_stats(
    context: typer.Context,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """Sizes and budgets, of a server also how often it helped."""
    from onceread.cli import cache_tables
    from onceread.cli.cache_directory import DirectoryCache
    from onceread.cli.cache_server import ServerCache

    if url is not None:
        found = ServerCache(url, key).overview()
        if as_json:
            cache_tables.print_json(found)
        else:
            cache_tables.show_overview(console(), found)
        return
    with DirectoryCache(directory_of(cache_dir, config)) as cache:
        use = cache.use()
    if as_json:
        cache_tables.print_json(use)
    else:
        cache_tables.show_directory(console(), use)


@app.command("pins")
def list_pins(
    context: typer.Context,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """List what is pinned."""
    from onceread.cli.cache_tables import print_json, show_pins

    with opened(context.params) as cache:
        found = cache.pins()
    if as_json:
        print_json(found)
    else:
        show_pins(console(), found.pins)


@app.command("pin")
def pin_path(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="a path's id, or its beginning")],  # noqa: A002
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="what to call it")],
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """Keep a path whatever happens."""
    from onceread.cli.cache_tables import clean, print_json

    if not (0 < len(name) <= 100 and name.isprintable() and name.strip()):
        raise CommandError("--name: must be 1 to 100 printable characters")
    with opened(context.params) as cache:
        pin = cache.pin(id, name)
    if as_json:
        print_json(pin)
    else:
        typer.echo(f"Pinned {pin.tokens:,} tokens as {clean(pin.name)}, id {pin.id}.")


@app.command("unpin")
def unpin(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="the pin's id, or its beginning")],  # noqa: A002
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """Remove a pin. What was pinned stays until its place is wanted."""
    from onceread.cli.cache_tables import print_json

    with opened(context.params) as cache:
        cache.unpin(id)
    if as_json:
        print_json({"id": id, "deleted": True})
    else:
        typer.echo(f"Unpinned {id}.")


@app.command("warm")
def warm(
    context: typer.Context,
    prompt: Annotated[
        Text, typer.Option("--prompt", metavar="TEXT", help="a raw prompt", rich_help_panel=_WHAT)
    ] = None,
    file: Annotated[
        File, typer.Option("--file", metavar="FILE", help="a raw prompt", rich_help_panel=_WHAT)
    ] = None,
    messages: Annotated[
        File,
        typer.Option("--messages", metavar="FILE.json", help="a conversation", rich_help_panel=_WHAT),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    model: Annotated[Text, option("model")] = None,
    chat_template: Annotated[Text, option("chat_template")] = None,
    gpu_layers: Annotated[Text, option("gpu_layers")] = None,
    ctx_size: Annotated[Text, option("ctx_size")] = None,
    threads_batch: Annotated[Text, option("threads_batch")] = None,
    cache_type_k: Annotated[Text, option("cache_type_k")] = None,
    cache_type_v: Annotated[Text, option("cache_type_v")] = None,
    flash_attn: Annotated[Text, option("flash_attn")] = None,
    exact: Annotated[Switch, option("exact")] = None,
    cache_disk: Annotated[Text, option("cache_disk")] = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """Read a prompt or a conversation now, so that what begins with it starts at once.

    Without --url the model is loaded here. Give the options of the model and
    the context as the server has them, and by --of and --salt the namespace.
    """
    from onceread.cli.cache_server import ServerCache
    from onceread.cli.cache_tables import print_json
    from onceread.cli.cache_warm import warm_directory, what_to_read

    what = what_to_read(prompt, file, messages)
    if url is not None:
        done = ServerCache(url, key, salt=salt, of=of).warm(what)
    else:
        names = ("prompt", "file", "messages", "as_json", "url", "key", "salt", "of", "config")
        flags = {name: value for name, value in context.params.items() if name not in names}
        done = warm_directory(what, load(flags, config), salt=salt, of=of)
    if as_json:
        print_json(done)
    else:
        known = done.usage.prompt_tokens_details.cached_tokens
        seconds = done.timings.prompt_ms / 1000
        typer.echo(
            f"Read {done.usage.prompt_tokens:,} tokens in {seconds:.1f} s; {known:,} were known before."
        )
    if not done.stored:
        raise CommandError(
            "it was read, and not all of it could be stored: onceread cache stats tells the room"
        )


@app.command("verify")
def verify(as_json: Json = False, cache_dir: CacheDir = None, config: Config = None) -> None:
    """Read every file of the directory and drop what is damaged. Exit status 1 if something was."""
    from onceread.cli.cache_directory import DirectoryCache
    from onceread.cli.cache_tables import clean, print_json

    with DirectoryCache(directory_of(cache_dir, config)) as cache:
        found = [{"path": str(one.path), "problem": one.problem} for one in cache.verify()]
        use = cache.use()
    if as_json:
        print_json({"findings": found, "chunks": use.chunks, "tokens": use.tokens})
    else:
        for one in found:
            problem = one["problem"].removeprefix(f"{one['path']}: ")
            typer.echo(f"{one['path']}: {clean(problem)}")
        bad = f"{len(found)} problems" if len(found) != 1 else "1 problem"
        typer.echo(
            f"{use.chunks:,} chunks of {use.tokens:,} tokens are good; {bad if found else 'no problems'}."
        )
    if found:
        raise typer.Exit(1)


@app.command("clear")
def clear(
    context: typer.Context,
    everyone: Annotated[
        bool, typer.Option("--all", help="of a server: every namespace's", rich_help_panel=SERVER)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="without asking")] = False,
    as_json: Json = False,
    url: Url = None,
    key: Key = None,
    salt: Salt = None,
    of: Of = None,
    cache_dir: CacheDir = None,
    config: Config = None,
) -> None:
    """Forget what is stored, pins too: a directory's all, a server's own namespace or --all."""
    from onceread.cli.cache_tables import print_json, size

    with opened(context.params) as cache:
        if not yes:
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise CommandError("say --yes: there is nobody to ask")
            where = url or directory_of(cache_dir, config)
            typer.confirm(f"Forget what is stored in {where}?", abort=True)
        freed = cache.clear(everyone=everyone)
    if as_json:
        print_json({"freed_bytes": freed})
    else:
        typer.echo(f"Freed {size(freed)}.")


@app.command("path")
def show_path(as_json: Json = False, cache_dir: CacheDir = None, config: Config = None) -> None:
    """Print the directory's path."""
    from onceread.cli.cache_tables import print_json

    directory = directory_of(cache_dir, config)
    if as_json:
        print_json({"directory": str(directory)})
    else:
        typer.echo(directory)
