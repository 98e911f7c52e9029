"""The guard of every loop and hook of ours: catch, count, log once per type, go on.

No exception of ours may reach the application, and no exception of the application may be lost: its signal handlers
raise in the middle of our code too. Owns the logger, which makes the arguments of its lines printable.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps
import logging
from collections import Counter
from functools import partial
from traceback import walk_tb
from types import CodeType
from typing import Any

from splunk_profiler.system.printable import printable

logger = logging.getLogger("splunk_profiler")
_MAX_LOGGED_ONCE = 64
_SIGNALS = range(1, _signal.NSIG)


def is_interrupt(error: BaseException) -> bool:
    """Return True if `error` is not ours, and must be raised again.

    It is to end a thread or the process, or a signal handler has raised it: time limits of jobs (Celery, RQ) are such
    an `Exception`. One that another thread sends (`PyThreadState_SetAsyncExc`) leaves no trace of where it comes from,
    and counts as ours.
    """
    return not isinstance(error, Exception) or _is_of_signal_handler(error)


def _is_of_signal_handler(error: BaseException) -> bool:
    traceback = error.__traceback__
    # Not the first frame, which has caught it: our code in a handler may fail, too.
    if traceback is None or traceback.tb_next is None:
        return False
    # An error may recur with each span: `signal.getsignal` makes enumerators, which takes 200 us.
    handlers = filter(callable, map(_signal.getsignal, _SIGNALS))
    codes = {_code_of(handler) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in walk_tb(traceback.tb_next))


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, method, partial or object with `__call__`; None for any other handler."""
    function = handler.func if isinstance(handler, partial) else handler
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def make_printable(record: logging.LogRecord) -> bool:
    """Escape the arguments of `record` (a service, a path, an answer), so that it stays one line."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_printable, record.args))
    if record.exc_info and not record.exc_text:  # formatters print it if it is set
        lines = logging.Formatter().formatException(record.exc_info).split("\n")
        record.exc_text = "\n".join(map(printable, lines))
    return True


def _printable(argument: object) -> object:
    try:
        text = str(argument)
    except Exception as error:  # of the application's object: logging handles it when it formats the line
        if is_interrupt(error):
            raise
        return argument
    return argument if text.isprintable() else printable(text)


logger.addFilter(make_printable)
_is_enabled_for = logger.isEnabledFor


def is_enabled_for(level: int) -> bool:
    """Return True if the application wants lines of `level`.

    By default `logging.config` disables all loggers that exist, as ours does under `splunk-profiler run`. Its level is
    what silences it.
    """
    logger.disabled = False
    return _is_enabled_for(level)


logger.isEnabledFor = is_enabled_for  # type: ignore[method-assign]
_make_record = logger.makeRecord


def make_record(*fields: Any, **more: Any) -> logging.LogRecord:
    """Make the record of a line; a plain one if the application's factory raises: our caller must not get its error."""
    try:
        return _make_record(*fields, **more)
    except Exception as error:
        if is_interrupt(error):
            raise
        return logging.LogRecord(*fields[:8])  # up to the name of the function


logger.makeRecord = make_record  # type: ignore[method-assign]


_log = logger._log


def log_line(*fields: Any, **more: Any) -> None:
    """Log a line; as a plain logger does if the application's class of loggers raises."""
    try:
        _log(*fields, **more)
    except Exception as error:
        if is_interrupt(error):
            raise
        logging.Logger._log(logger, *fields, **more)


if type(logger)._log is not logging.Logger._log:  # else this function would be named as the one that logs
    logger._log = log_line  # type: ignore[method-assign]


def plain_line(record: logging.LogRecord) -> bytes:
    """Return the line of `record` as a handler of its level writes it, made without a lock; empty if there is none."""
    handlers = [handler for handler in log_handlers() if record.levelno >= handler.level]
    if not (handlers and logger.filter(record)):
        return b""
    return f"{handlers[0].format(record)}\n".encode("utf-8", "backslashreplace")


def log_handlers() -> list[logging.Handler]:
    """Return the handlers of our lines, as `logging` finds them."""
    found: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += current.handlers
        current = current.parent if current.propagate else None
    if not found and logging.lastResort is not None:
        return [logging.lastResort]
    return [handler for handler in found if not isinstance(handler, logging.NullHandler)]


class OnceLog:
    """A log that writes equal lines once, and 64 different ones at most: what others send may be in them."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, text: str, level: int = logging.WARNING) -> None:
        """Write `text`, unless that was done."""
        if text not in self._logged and len(self._logged) < _MAX_LOGGED_ONCE:
            self._logged.add(text)
            logger.log(level, "%s", text)


class Guard:
    """A context manager that counts the exceptions of one `place` ("the sampling thread"), for the log, by type."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.failures: Counter[str] = Counter()

    def catching(self) -> Guard:
        """Discard an exception of the ``with`` block; log the first of each type."""
        return self  # no new object: each snapshot has several such blocks

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        """Count an error of ours; let others pass."""
        if error is None or is_interrupt(error):
            return False
        self.count(error)
        return True

    def note(self, error: BaseException) -> None:
        """Count and log an error that the caller has caught, because a block would cost too much there.

        Raise it again if it is not ours (`is_interrupt`).
        """
        if is_interrupt(error):
            raise  # noqa: PLE0704  # in the caller's `except`; unlike `raise error`, it adds no frame that has the error
        self.count(error)

    def count(self, error: BaseException) -> None:
        """Count an error of ours; log the first of its type."""
        kind = type(error).__name__
        self.failures[kind] += 1
        if self.failures[kind] == 1:
            logger.warning(
                "an error in %s was caught and the profiler goes on; others like it are counted, not logged",
                self._place,
                exc_info=error,
            )
