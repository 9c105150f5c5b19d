"""`onceread models pull` on a terminal: a bar for each file, one line when it is done."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from onceread.cli.errors import CommandError
from onceread.cli.model_file import gib
from onceread.cli.models_tables import print_json
from onceread.models.errors import ModelFileError
from onceread.models.hub import HubFile
from onceread.models.pull import pull


class _Shown:
    """Bars on stderr, and nothing where that is no terminal but a line for each thing that begins."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars: Bars | None = None
        if console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
        self._known: set[tuple[str, str]] = set()
        self._task: TaskID | None = None

    def show(self, file: HubFile, doing: str, done: int, total: int) -> None:
        label = f"{doing} {file.name}"
        if (file.name, doing) not in self._known:
            self._known.add((file.name, doing))
            if self._bars is None:
                begins = f", from {gib(done)} on" if done and doing == "downloading" else ""
                print(f"{label}: {gib(total)}{begins}", file=sys.stderr, flush=True)  # noqa: T201
            else:
                self._task = self._bars.add_task(label, total=total, completed=done)
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done)

    def __enter__(self) -> _Shown:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()


def pull_and_show(reference: str, *, as_json: bool) -> None:
    """Raises CommandError, also for Ctrl-C: it says how to go on."""
    try:
        with _Shown() as shown:
            done = pull(reference, progress=shown.show)
    except ModelFileError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        print(f"\nStopped; onceread models pull {reference} goes on from here.", file=sys.stderr)  # noqa: T201
        raise
    if as_json:
        print_json(
            {
                "name": done.name,
                "paths": [str(path) for path in done.paths],
                "size_bytes": done.size_bytes,
                "downloaded_bytes": done.downloaded_bytes,
            }
        )
        return
    how = f"{gib(done.downloaded_bytes)} downloaded" if done.downloaded_bytes else "it was here already"
    print(f"{done.name}: {gib(done.size_bytes)}, {how}, checksum right")  # noqa: T201
    print(f"onceread serve --model {done.name}")  # noqa: T201
