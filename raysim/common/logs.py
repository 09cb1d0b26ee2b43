"""Log records shown to the user while a run or a command lasts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def show_logs(show: Callable[[str], None], name: str = "raysim") -> Iterator[None]:
    """Pass the message of every record at INFO or above to `show`, from whichever thread, until the block ends.

    name: the logger; records of its child loggers are included.
    """
    logger, handler = logging.getLogger(name), _Handler(show)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    """Passes messages to a function; its exceptions reach the code that logs, as those of `print` would."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message."""
        self._show(self.format(record))
