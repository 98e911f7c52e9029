"""Sends the last interval, and spans that wait, when SIGTERM with its default action is about to end the process.

The handler is native (`native/walker/sigterm.c`): Python's table still lists the default action, and a main thread that
is stuck in C does not delay it. The thread that waits for samples waits for the signal, too; without one,
another thread of ours does. A handler of the application replaces ours; when it restores the default (uvicorn does at
its end), ours is installed again. Imports no sink.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import Worker

_EXIT_TIMEOUT_MS = 1500  # from the signal to the end, whatever happens
_JOIN_S = 0.1


class SigtermHandler:
    """The handler of SIGTERM from `start` to `stop`; in a forked child, from the next `start` on.

    Args:
        on_sigterm: sends what is gathered, then calls its argument, which ends the process; on a thread of ours.

    Attributes:
        is_ending: True once SIGTERM has come; it ends the process within 1.5 seconds.
    """

    def __init__(self, on_sigterm: Callable[[Callable[[], None]], None]) -> None:
        self._on_sigterm = on_sigterm
        self._signal_patch = MethodPatch(signal)
        self._guard = Guard("sending the last interval at SIGTERM")
        self._extension: Any = None  # from `start` to `stop`
        self._worker: Worker | None = None
        self.is_ending = False

    def start(self, *, is_looked_for: bool) -> None:
        """Handle SIGTERM from now on if the native walker is there; `RuntimeError` if no more threads can be made.

        `is_looked_for`: the native walker's ticker is in use, and its drains are followed by `look`.
        """
        self.is_ending = False
        try:
            from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems

            listener_id = _walker.sigterm_open(_EXIT_TIMEOUT_MS)
        except (ImportError, OSError) as error:
            logger.debug("SIGTERM is not handled (%s): the last interval is lost", error)
            return
        self._extension = _walker
        if not is_looked_for:
            self._worker = Worker("sigterm", lambda: self._wait(_walker, listener_id))
            self._worker.start()
        _walker.sigterm_install()
        self._signal_patch.install({"signal": _wrap_signal(signal.signal, _walker.sigterm_install)})

    def look(self) -> None:
        """Have the process end if SIGTERM has come; returns at once. Never raises."""
        extension = self._extension
        if extension is not None and extension.sigterm_take():
            try:
                Worker("sigterm", lambda: self._end(extension)).start()
            except (RuntimeError, MemoryError):  # no more threads
                extension.sigterm_end_process()

    def stop(self) -> None:
        """Handle SIGTERM no more, unless it has come."""
        extension = self._extension
        if extension is None:
            return
        self._signal_patch.remove()
        self.is_ending = not extension.sigterm_close()
        if self.is_ending:
            self.look()  # the thread that did may have ended
            return
        self._extension = None
        if self._worker is not None:
            self._worker.join(_JOIN_S)
            self._worker = None

    def _wait(self, extension: ModuleType, listener_id: int) -> None:
        extension.sigterm_wait(listener_id)
        if extension.sigterm_take():
            self._end(extension)

    def _end(self, extension: ModuleType) -> None:
        self.is_ending = True
        with self._guard.catching():
            self._on_sigterm(extension.sigterm_end_process)
        extension.sigterm_end_process()


def _wrap_signal(original: Callable[..., Any], install: Callable[[], bool]) -> Callable[..., Any]:
    """Wrap `signal.signal`: call `install` after each change of SIGTERM's action."""

    @wraps(original)
    def set_handler(signalnum: Any, handler: Any) -> Any:
        previous = original(signalnum, handler)
        if signalnum == signal.SIGTERM:
            install()
        return previous

    return set_handler
