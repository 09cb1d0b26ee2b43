"""Showing log records to the user during a run or a command."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def show_logs(show: Callable[[str], None], name: str = "raysim") -> Iterator[None]:
    """Inside a block, pass the message of every record at INFO or above, from any thread, to `show`.

    name: the logger; records of its child loggers are included.
    """
    logger, handler = logging.getLogger(name), _Handler(show)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    """Passes messages to a function. Its exceptions reach the code that logs, as exceptions of `print` would."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message."""
        self._show(self.format(record))
