"""A thread that does one thing after another, so that a slow disk makes nobody wait but itself."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Worker:
    """Jobs run in the order they came. A job that raises is logged; the next one runs."""

    def __init__(self, name: str, *, tidy: Job | None = None, every: float = 1.0) -> None:
        """``tidy`` runs when there is nothing else, at most every ``every`` seconds, and once at the end."""
        self._jobs: deque[Job] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._busy = False
        self._tidy = tidy
        self._every = every
        self._untidy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        with self._change:
            self._jobs.append(job)
            self._change.notify_all()

    def mark_untidy(self) -> None:
        """There is something for ``tidy`` to do."""
        with self._change:
            if not self._untidy:
                self._untidy = True
                self._change.notify_all()

    def do(self, job: Job, timeout: float) -> bool:
        """Run a job and wait for it. False if it is not done in ``timeout`` seconds; it may still come to be run."""
        done = threading.Event()

        def run() -> None:
            try:
                job()
            finally:
                done.set()

        self.add(run)
        return done.wait(timeout)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until there is nothing to do, ``tidy`` aside."""
        with self._change:
            return self._change.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def close(self, timeout: float) -> bool:
        """Finish what is there, within ``timeout`` seconds. False if that was not enough."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._jobs and not self._closing:
                    if self._untidy:
                        self._change.wait_for(lambda: bool(self._jobs) or self._closing, self._every)
                        break
                    self._change.wait()
                job = self._jobs.popleft() if self._jobs else None
                ends = job is None and self._closing
                tidies = job is None and self._untidy
                if tidies:
                    self._untidy = False
                self._busy = True
            if job is not None:
                self._guard(job)
            elif tidies and self._tidy is not None:
                self._guard(self._tidy)
            with self._change:
                self._busy = False
                self._change.notify_all()
            if ends and not self._untidy:
                return

    def _guard(self, job: Job) -> None:
        try:
            job()
        except Exception:
            logger.exception("a job of the store failed")
