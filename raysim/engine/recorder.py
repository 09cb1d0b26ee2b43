"""A thread that passes rounds to the trackers and writes checkpoints while the next round runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from raysim.common.results import ClientRow, Tracker


class Recorder:
    """Logs a round to the trackers while the next round runs, so that no round waits for files or displays.

    There is one thread, so trackers get rounds in order. A tracker's exception is raised with the next round.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), at_once: bool = False) -> None:
        """Create the thread. at_once: each call waits until its round is logged."""
        self.trackers, self.at_once = trackers, at_once
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self.logging: Future[None] | None = None

    def __enter__(self) -> Recorder:
        return self

    def __call__(
        self, t: int, values: dict[str, Any], rows: Sequence[ClientRow], then: Callable[[], object] | None = None
    ) -> None:
        """Log a round. then: function to call after all trackers."""
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
            # An actor that forwards the checkpoint's files waits until they are taken or released. They will not be
            # written, and the error refers to this frame, so the frame must release them.
            then = None
            raise
        if then is not None:
            then()

    def wait(self) -> None:
        """Wait until the last round is logged. Raises the exception of a tracker or of `then`, if there was one."""
        if self.logging is not None:
            logging, self.logging = self.logging, None
            logging.result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self.thread.shutdown(wait=True)
