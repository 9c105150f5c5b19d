"""Where `onceread cache` looks: the options that say it, and the directory or server behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from onceread.cli.errors import CommandError
from onceread.cli.option_types import SERVER
from onceread.cli.option_types import File as File
from onceread.cli.option_types import Switch as Switch
from onceread.cli.option_types import Text as Text
from onceread.cli.option_types import Url as Url
from onceread.models.home import expanded
from onceread.server.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from rich.console import Console

    from onceread.server.cache_schemas import PathList, PinBody, PinList

DIRECTORY = "The directory"

Key = Annotated[
    Text,
    typer.Option(
        "--key",
        metavar="SECRET",
        help="an API key or the admin key; better in the variable ONCEREAD_KEY",
        envvar="ONCEREAD_KEY",
        show_envvar=False,
        rich_help_panel=SERVER,
    ),
]
Salt = Annotated[
    Text, typer.Option("--salt", metavar="TEXT", help="the namespace's cache_salt", rich_help_panel=SERVER)
]
Of = Annotated[
    Text,
    typer.Option(
        "--of", metavar="NAME", help="the API key whose part is meant (admin)", rich_help_panel=SERVER
    ),
]
CacheDir = Annotated[
    Text,
    typer.Option("--cache-dir", metavar="DIR", help="as in onceread serve", rich_help_panel=DIRECTORY),
]
Config = Annotated[
    File, typer.Option("--config", metavar="FILE", help="settings as TOML", rich_help_panel=DIRECTORY)
]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs")]


class Cache(Protocol):
    """A directory's cache or a server's."""

    def paths(self, limit: int, after: str | None) -> PathList: ...

    def pins(self) -> PinList: ...

    def pin(self, id: str, name: str) -> PinBody: ...  # noqa: A002

    def unpin(self, id: str) -> None: ...  # noqa: A002

    def clear(self, *, everyone: bool) -> int: ...


@contextmanager
def opened(params: Mapping[str, Any]) -> Iterator[Cache]:
    """The server that was named, else the directory."""
    url, key, salt, of = (params[name] for name in ("url", "key", "salt", "of"))
    if url is not None:
        from onceread.cli.cache_server import ServerCache

        yield ServerCache(url, key, salt=salt, of=of)
        return
    for given, flag in ((salt, "--salt"), (of, "--of")):
        if given is not None:
            raise CommandError(
                f"{flag} names a namespace on a server: give --url; a directory shows all of them"
            )
    from onceread.cli.cache_directory import DirectoryCache

    with DirectoryCache(directory_of(params["cache_dir"], params["config"])) as cache:
        yield cache


def directory_of(cache_dir: str | None, config: Path | None) -> Path:
    """Where the directory is, or would be. Raises CommandError."""
    return expanded(load({"cache_dir": cache_dir}, config).cache_dir)


def load(flags: Mapping[str, object], config: Path | None) -> Settings:
    """Settings from flags, environment and file. Raises CommandError."""
    try:
        return load_settings(flags, config=config)
    except SettingsError as error:
        raise CommandError(str(error)) from None


def console() -> Console:
    """Where results are shown."""
    from rich.console import Console

    return Console(highlight=False)
