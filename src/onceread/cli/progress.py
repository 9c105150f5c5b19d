"""How far the model has loaded: a bar on a terminal, a line or none elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

_LINE_EVERY = 5.0  # seconds


class Progress:
    """``show(share)`` with what is loaded, 0 to 1, from the loading thread."""

    def __init__(self, doing: str, file: TextIO | None = None) -> None:
        """``file`` is where it is shown: stdout unless that belongs to a result."""
        self._doing = doing
        self._file = file
        console = Console(file=file)
        self._bar: Bar | None = None
        if console.is_terminal:
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=console, transient=True)
        self._said_at = time.monotonic()

    def show(self, share: float) -> bool:
        """Always True, so that it can stand in a condition."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share)
        elif time.monotonic() - self._said_at >= _LINE_EVERY:
            self._said_at = time.monotonic()
            print(f"  {self._doing}: {share:.0%}", file=self._file, flush=True)
        return True

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._doing, total=1.0)
        else:
            print(f"  {self._doing}", file=self._file, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
