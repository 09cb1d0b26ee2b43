"""A thread that logs rounds to the trackers and writes checkpoints while the next round runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from raysim.common.results import ClientRow, Tracker


class Recorder:
    """Logs round t to the trackers while round t + 1 runs, so that writing files and showing progress costs no time.

    There is one thread, so trackers get rounds in order. A tracker's exception is raised with the next round.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), at_once: bool = False) -> None:
        """Create the thread. at_once: the caller waits for each round to be logged, before it runs the next one."""
        self.trackers, self.at_once = trackers, at_once
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self.logging: Future[None] | None = None

    def __enter__(self) -> Recorder:
        return self

    def __call__(
        self, t: int, values: dict[str, Any], rows: Sequence[ClientRow], then: Callable[[], object] | None = None
    ) -> None:
        """Log a round. then: called after all trackers."""
        self.wait()
        ordered = sorted(rows, key=lambda row: row.client)
        self.logging = self.thread.submit(self._log, t, values, ordered, then)

    def _log(
        self, t: int, values: dict[str, Any], rows: Sequence[ClientRow], then: Callable[[], object] | None
    ) -> None:
        try:
            for tracker in self.trackers:
                tracker.log(t, dict(values), list(rows))  # copies: a custom tracker may change them
        except BaseException:
            # The error keeps this frame. It must not keep the files of the checkpoint, which will not be written: an
            # actor that forwards them waits until they are taken or dropped.
            then = None
            raise
        if then is not None:
            then()

    def wait(self) -> None:
        """Wait until the last round is logged; raise the exception of a tracker or of `then`, if any."""
        if self.logging is not None:
            logging, self.logging = self.logging, None
            logging.result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self.thread.shutdown(wait=True)
