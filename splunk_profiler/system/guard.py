"""The one guard of every loop and hook of ours: catch, count, log once per kind, go on.

No exception of ours may reach the application. Owns the logger, whose lines stay lines whatever names they hold.
"""

from __future__ import annotations

import logging
from collections import Counter

from splunk_profiler.system.printable import printable

logger = logging.getLogger("splunk_profiler")


def make_printable(record: logging.LogRecord) -> bool:
    """Make what a log line names (a service, a path, an answer) safe to print, so that it stays one line."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_printable, record.args))
    if record.exc_info and not record.exc_text:  # what formatters take, if it is there
        lines = logging.Formatter().formatException(record.exc_info).split("\n")
        record.exc_text = "\n".join(map(printable, lines))
    return True


def _printable(argument: object) -> object:
    try:
        text = str(argument)
    except Exception:  # of an object of the application's: logging deals with it when it formats the line
        return argument
    return argument if text.isprintable() else printable(text)


logger.addFilter(make_printable)


class Guard:
    """Counts what went wrong in one place of the profiler, by the exception's type.

    Args:
        place: what is being guarded, for the log line ("the sampling thread").
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.failures: Counter[str] = Counter()

    def catching(self) -> Guard:
        """``with guard.watching():`` swallows an exception of the block; the first of each type is logged."""
        return self  # nothing has to be made for a block, of which there are several in each snapshot

    def __enter__(self) -> None:
        """The block begins."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        """The block has ended; exceptions that end a thread or the process go on."""
        if not isinstance(error, Exception):
            return False
        self.note(error)
        return True

    def note(self, error: Exception) -> None:
        """As `catching`, for an exception that was caught where a block would cost too much."""
        kind = type(error).__name__
        self.failures[kind] += 1
        if self.failures[kind] == 1:
            logger.warning(
                "an error in %s was caught and the profiler goes on; others like it are counted, not logged",
                self._place,
                exc_info=error,
            )
