"""SIGTERM with its default action ends the process as it would, after what was gathered has been sent.

The handler is native (`native/walker/sigterm.c`): Python's table goes on to say that the action is the default one, and
a main thread that is stuck in C does not matter. A thread of ours waits for the signal. A handler that the application
sets replaces ours; where it restores the default, as uvicorn does at its end, ours is back. Imports no sink.
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
    """Watches for SIGTERM from `start` to `stop`; in a forked child, from the next `start` on.

    Args:
        on_sigterm: sends what is gathered, then calls what it is given, which ends the process; on a thread of ours.

    Attributes:
        is_ending: SIGTERM has come; the process ends by it within 1.5 seconds.
    """

    def __init__(self, on_sigterm: Callable[[Callable[[], None]], None]) -> None:
        self._on_sigterm = on_sigterm
        self._signal_patch = MethodPatch(signal)
        self._guard = Guard("sending what is gathered at SIGTERM")
        self._worker: Worker | None = None
        self.is_ending = False

    def start(self) -> None:
        """Watch from now on, where the native walker is there to do it.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        try:
            from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system
        except ImportError as error:
            logger.debug("what is gathered when SIGTERM comes is not sent: %s", error)
            return
        self.is_ending = False
        watch_id = _walker.sigterm_open()
        self._worker = Worker("sigterm", lambda: self._wait(_walker, watch_id))
        self._worker.start()
        _walker.sigterm_install()
        self._signal_patch.install({"signal": _wrap_signal(signal.signal, _walker.sigterm_install)})

    def stop(self) -> None:
        """Watch no more, unless SIGTERM has come."""
        if self._worker is None:
            return
        from splunk_profiler import _walker  # noqa: PLC0415  # it was there at the start

        self._signal_patch.remove()
        self.is_ending = not _walker.sigterm_close()
        if not self.is_ending:
            self._worker.join(_JOIN_S)
            self._worker = None

    def _wait(self, extension: ModuleType, watch_id: int) -> None:
        if extension.sigterm_wait(watch_id, _EXIT_TIMEOUT_MS):
            self.is_ending = True
            with self._guard.catching():
                self._on_sigterm(extension.sigterm_end_process)
            extension.sigterm_end_process()


def _wrap_signal(original: Callable[..., Any], install: Callable[[], bool]) -> Callable[..., Any]:
    """`signal.signal`, followed by `install` where it has changed the action of SIGTERM."""

    @wraps(original)
    def set_handler(signalnum: Any, handler: Any) -> Any:
        previous = original(signalnum, handler)
        if signalnum == signal.SIGTERM:
            install()
        return previous

    return set_handler
