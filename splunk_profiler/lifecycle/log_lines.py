"""Passes our log lines to the application's handlers, whose locks a forked child may inherit.

Runs on the thread that writes the line. Imported once, by `process`: it takes the place of the logger's `handle`.
"""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from splunk_profiler.system.descriptors import file_of, takes_lines
from splunk_profiler.system.guard import is_interrupt, log_handlers, logger, plain_line
from splunk_profiler.system.threads import Worker, delaying_forks, is_profiler_thread, real, threads_are_greenlets

_STDERR = 2
_MAX_START_LINES = 64
_MAX_WAIT_MS = 100  # for the reader of a pipe or terminal


class _StandardError:
    """Standard error as it was at the last start.

    Later another file may have its number, as in a daemon's process. It gets lines if it is one for a log.
    """

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Note which file it is; none, if the interpreter was started without one."""
        self._file = None if sys.__stderr__ is None else file_of(_STDERR)

    def has_room(self) -> bool:
        """Return False if standard error is not there, or full."""
        if self._file is None or not (file_of(_STDERR) == self._file or takes_lines(_STDERR)):
            return False
        return _is_ready(_STDERR)

    def write(self, line: bytes) -> None:
        """Write a line if there is room."""
        if self.has_room():
            real("os", "write")(_STDERR, line)


class LineHandler:
    """The logger's `handle`, which is called for each line.

    Attributes:
        standard_error: to be noted at each start.
    """

    def __init__(self) -> None:
        self.standard_error = _StandardError()
        self._call_handlers = logger.handle
        self._handle: Callable[[logging.LogRecord], None] = self._handle_between_forks
        self._start_lines: set[str] = set()

    def __call__(self, record: logging.LogRecord) -> None:
        """Hand a line to the application's handlers.

        An error of a handler is reported as `logging` does; if that fails too, it is dropped.
        """
        try:
            self._handle(record)
        except Exception as error:
            if is_interrupt(error):
                raise
            with suppress(Exception), delaying_forks():  # it has the lock of `sys.stderr`
                logging.NullHandler().handleError(record)

    def in_start(self) -> AbstractContextManager[None]:
        """Keep the lines of a start: forked children do not repeat them."""
        return self._handling_by(self._handle_in_start)

    def in_fork_hook(self) -> AbstractContextManager[None]:
        """Log warnings that no start has said yet, on a thread of ours, so that the fork ends.

        A thread that the child lacks may have been in a handler. `logging` renews its own locks in the child, but not
        those of streams and queues. Lines below warnings are dropped: they are those of the parent's start, which its
        level may have kept back.
        """
        return self._handling_by(self._handle_in_fork_hook)

    @contextmanager
    def _handling_by(self, handle: Callable[[logging.LogRecord], None]) -> Iterator[None]:
        before, self._handle = self._handle, handle
        try:
            yield
        finally:
            self._handle = before

    def _handle_in_start(self, record: logging.LogRecord) -> None:
        if len(self._start_lines) < _MAX_START_LINES:
            self._start_lines.add(record.getMessage())
        self._handle_between_forks(record)

    def _handle_in_fork_hook(self, record: logging.LogRecord) -> None:
        if is_profiler_thread():
            self._handle_between_forks(record)
        elif record.levelno > logging.INFO and record.getMessage() not in self._start_lines:
            with suppress(RuntimeError):  # the process can make no more threads
                Worker("logger", lambda: self(record)).start()

    def _handle_between_forks(self, record: logging.LogRecord) -> None:
        """Let no child inherit handlers' locks from a thread of ours.

        Handlers' locks are of greenlets where gevent or eventlet has replaced them: one that waits for a thread of ours
        would wait for ever. There, lines of our threads go to standard error. A line for which there is no room is
        dropped: a handler would wait with its lock, and the process for that at its end.
        """
        is_direct = threads_are_greenlets() and is_profiler_thread()
        if not is_direct and not all(map(self._has_room, log_handlers())):
            return
        with delaying_forks():
            if is_direct:
                self.standard_error.write(plain_line(record))
            else:
                self._call_handlers(record)

    def _has_room(self, handler: Any) -> bool:
        """Return False if a handler would wait for its file's reader, or write into a file in standard error's place.

        True if it has no stream, or one without a file.
        """
        with suppress(AttributeError, OSError, TypeError, ValueError):
            if handler.stream is sys.__stderr__:
                return self.standard_error.has_room()
            return _is_ready(handler.stream.fileno())
        return True


def _is_ready(descriptor: int) -> bool:
    """Return False if a write would wait for a reader, as that to a full pipe does."""
    poll = real("select", "poll")()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(_MAX_WAIT_MS))


LINE_HANDLER = LineHandler()
logger.handle = LINE_HANDLER  # type: ignore[method-assign]
