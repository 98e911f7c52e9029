"""`start` and `stop` in signal handlers, finalisers and threads: ``interrupted.py CASE``.

Prints ``done`` where everything has come back and nothing of the profiler is left.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import weakref
from types import FrameType

from marked_work import LEDGER, load_exporter, say, wait
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

_ROUNDS = 40


class InterruptedWorkError(BaseException):
    """The error that a signal handler of the application raises."""


def _stop_in_handler(*_: object) -> None:
    splunk_profiler.stop()


def _names() -> set[str]:
    # A handler that raises in `Thread.start` leaves a thread listed that has never begun.
    alive = [thread for thread in threading.enumerate() if thread.is_alive()]
    return {thread.name for thread in alive if thread.name.startswith("splunk-profiler-")}


def _functions(frame: FrameType | None) -> set[tuple[str, str]]:
    """Return module and name of the functions on a stack."""
    functions = set()
    while frame is not None:
        functions.add((frame.f_globals["__name__"], frame.f_code.co_name))
        frame = frame.f_back
    return functions


def _wait_for_end() -> None:
    """Wait for threads that were stopped without a join; the test ends one that waits for ever."""
    pause = threading.Event()
    while _names():
        pause.wait(0.01)


def _say_done() -> None:
    splunk_profiler.stop(10)
    _wait_for_end()
    say("done")


def handler_at_exit() -> None:
    """A handler stops the profiler while its own stop at the exit waits for the collector."""
    heard = 0

    def handle(*_: object) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            signal.raise_signal(signal.SIGTERM)  # another one, while the exit is surely not over
        splunk_profiler.stop()
        say("handled", heard)

    signal.signal(signal.SIGTERM, handle)
    assert splunk_profiler.start()
    atexit.register(say, "exits")  # before what was registered earlier
    say("ready", os.getpid())
    open(0, "rb", buffering=0, closefd=False).readline()  # noqa: SIM115


def handler_in_stop() -> None:
    """Signals whose handler stops come one after the other while it stops."""
    signal.signal(signal.SIGALRM, _stop_in_handler)
    for number in range(_ROUNDS):
        assert splunk_profiler.start()
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (number + 1), 0.001)
        splunk_profiler.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)
    _say_done()


def handler_in_start() -> None:
    """Stop the profiler in a signal handler during its start; it must not run afterwards."""
    heard: list[bool] = []

    def handle(_number: int, frame: FrameType | None) -> None:
        heard.append(("splunk_profiler.lifecycle.process", "start") in _functions(frame))
        splunk_profiler.stop()

    signal.signal(signal.SIGALRM, handle)
    for number in range(_ROUNDS):
        signal.setitimer(signal.ITIMER_REAL, 0.0002 * (number + 1))
        splunk_profiler.start()
        with LEDGER.span(7):
            while len(heard) == number:
                wait(7)
        if heard[-1]:
            _wait_for_end()
        splunk_profiler.stop()
    assert any(heard)
    _say_done()


def handler_raises() -> None:
    """Handlers raise in the middle of starts and stops; the next ones work as ever."""

    def handle(_number: int, frame: FrameType | None) -> None:
        modules = {module for module, _ in _functions(frame)}
        # An error inside of `logging`, or of `importlib` itself (not of a module that it loads), may leave a lock of
        # Python's acquired, for which every other thread waits for ever; on 3.14 also in `threading`, as after each
        # ``with`` that has just taken a lock.
        is_import = frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")
        locking = {"logging", "threading"} if sys.version_info[:2] == (3, 14) else {"logging"}
        if "splunk_profiler.lifecycle.process" in modules and not modules & locking and not is_import:
            raise InterruptedWorkError

    signal.signal(signal.SIGALRM, handle)
    for number in range(_ROUNDS):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0007 * (number + 1), 0.02)
            while True:
                splunk_profiler.start()
                splunk_profiler.stop()
        except InterruptedWorkError:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert splunk_profiler.start()
        listed = [thread for thread in threading.enumerate() if thread.is_alive()]
        *others, _ = [thread for thread in listed if thread.name == "splunk-profiler-ticker"]
        for other in others:  # its stop was interrupted after it had been told to end
            other.join(60)
            assert not other.is_alive(), listed
    _say_done()


class _Cycle:
    """Stops the profiler when a collection of garbage finds it, on whichever thread that is."""

    def __init__(self) -> None:
        self.itself = self
        weakref.finalize(self, splunk_profiler.stop)


def finaliser() -> None:
    """Finalisers stop the profiler on any thread, its own among them."""
    gc.set_threshold(20)
    for _ in range(_ROUNDS):
        assert splunk_profiler.start() in (True, False)
        for _ in range(5):
            _Cycle()
        splunk_profiler.stop()
    gc.set_threshold(700)
    gc.collect()
    _say_done()


def own_thread() -> None:
    """Stopped by code of the application that runs on a thread of the profiler: a handler of its log lines."""
    asked = threading.Event()

    class Stopping(logging.Handler):
        """Stops the profiler where it complains that nothing is delivered."""

        def emit(self, _record: logging.LogRecord) -> None:
            if threading.current_thread().name in ("splunk-profiler-exporter", "splunk-profiler-sampler"):
                splunk_profiler.stop()
                splunk_profiler.start()
                splunk_profiler.stop()
                asked.set()

    logging.getLogger("splunk_profiler").addHandler(Stopping())
    assert splunk_profiler.start()
    assert asked.wait(60)
    _say_done()


def inside_threading() -> None:
    """A handler starts it while its thread is in a function of `threading`, and so has the lock of that module."""
    with vars(threading)["_active_limbo_lock"]:
        assert splunk_profiler.start()
    splunk_profiler.stop()
    _say_done()


def threads() -> None:
    """Many threads start and stop at once."""

    def turn() -> None:
        for _ in range(10):
            splunk_profiler.start()
            splunk_profiler.stop(0.2)

    turning = [threading.Thread(target=turn) for _ in range(6)]
    for thread in turning:
        thread.start()
    for thread in turning:
        thread.join()
    _say_done()


_CASES = {
    function.__name__: function
    for function in (
        handler_at_exit, handler_in_stop, handler_in_start, handler_raises, finaliser, own_thread, threads,
        inside_threading,
    )
}  # fmt: skip


if __name__ == "__main__":
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    _CASES[sys.argv[1]]()
