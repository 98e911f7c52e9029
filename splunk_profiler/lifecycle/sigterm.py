"""Sends the last interval, and spans that wait, when SIGTERM with its default action is about to end the process.

The handler is native (`native/walker/sigterm.c`): Python's table still lists the default action, and a main thread that
is stuck in C does not delay it. A thread of ours waits for the signal. A handler of the application replaces ours;
when it restores the default (uvicorn does at its end), ours is installed again. Imports no sink.
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
        self._worker: Worker | None = None
        self.is_ending = False

    def start(self) -> None:
        """Handle SIGTERM from now on if the native walker is there; `RuntimeError` if no more threads can be made."""
        try:
            from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems
        except ImportError as error:
            logger.debug("SIGTERM is not handled (%s): the last interval is lost", error)
            return
        self.is_ending = False
        listener_id = _walker.sigterm_open()
        self._worker = Worker("sigterm", lambda: self._wait(_walker, listener_id))
        self._worker.start()
        _walker.sigterm_install()
        self._signal_patch.install({"signal": _wrap_signal(signal.signal, _walker.sigterm_install)})

    def stop(self) -> None:
        """Handle SIGTERM no more, unless it has come."""
        if self._worker is None:
            return
        from splunk_profiler import _walker  # noqa: PLC0415  # `start` has loaded it

        self._signal_patch.remove()
        self.is_ending = not _walker.sigterm_close()
        if not self.is_ending:
            self._worker.join(_JOIN_S)
            self._worker = None

    def _wait(self, extension: ModuleType, listener_id: int) -> None:
        if extension.sigterm_wait(listener_id, _EXIT_TIMEOUT_MS):
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
