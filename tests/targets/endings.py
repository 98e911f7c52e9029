"""A service that is interrupted and ends in many ways while it is profiled: ``endings.py WAY...``.

Prints ``ready`` when it is profiled, and waits for a line on standard input; then its threads run, and it does its last
work (``last {…}`` says in which span) and goes each WAY. Where none of them ends it, the main thread returns.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from marked_work import LEDGER, InputLatch, load_exporter, say, wait, work
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

_ROUNDS = 100
_INTERPRETERS = 8


def _start_threads(daemon: bool, goes_on: Callable[[], bool]) -> None:
    def busy(worker: int) -> None:
        with LEDGER.span(worker):
            while goes_on():
                work(worker)
                wait(worker)  # else all else that this process does waits for the GIL for most of the time

    for worker in range(2):
        threading.Thread(target=busy, args=(worker,), daemon=daemon).start()


class InterruptedWorkError(Exception):
    """The error that a signal handler of the application raises."""


def _raise(*_: object) -> None:
    raise InterruptedWorkError


def handlers_that_raise() -> None:
    """Signals whose handler raises wherever the main thread is."""
    signal.signal(signal.SIGUSR1, _raise)
    raised = 0
    while raised < _ROUNDS:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            while True:
                wait_outside()
        except InterruptedWorkError:
            raised += 1
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    say("raised", raised)


def wait_outside() -> None:
    """A moment of the main thread's own."""
    threading.Event().wait(0.001)


def alarms() -> None:
    """A storm of SIGALRM, as profilers and watchdogs of the application send it."""
    heard = 0

    def hear(*_: object) -> None:
        nonlocal heard
        heard += 1

    signal.signal(signal.SIGALRM, hear)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    while heard < _ROUNDS * 3:
        wait_outside()
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("heard", heard)


def _interpreters() -> tuple[Any, list[dict[str, Any]]]:
    """The module of this version, and the ways of making an interpreter with it."""
    if sys.version_info >= (3, 13):
        return import_module("_interpreters"), [{"config": "isolated"}, {"config": "legacy"}]
    return import_module("_xxsubinterpreters"), [{"isolated": True}, {"isolated": False}]


_CODE = """
import threading
def count():
    total = 0
    for number in range(200_000):
        total += number
threads = [threading.Thread(target=count) for _ in range(2)]
for thread in threads: thread.start()
count()
for thread in threads: thread.join()
"""


def subinterpreters() -> None:
    """Interpreters that come and go, with threads of their own where they may have them."""
    module, ways = _interpreters()
    for turn in range(_INTERPRETERS):
        way = ways[turn % len(ways)]
        made = module.create(way["config"]) if "config" in way else module.create(**way)
        threadless = way.get("isolated") and sys.version_info < (3, 12)
        module.run_string(made, "sum(range(300_000))" if threadless else _CODE)
        module.destroy(made)
    say("destroyed", _INTERPRETERS)


class _LateStart:
    """Starts and stops the profiler when modules can no longer be imported."""

    def __del__(self) -> None:
        splunk_profiler.stop()
        assert not splunk_profiler.start()


def late_finaliser() -> None:
    """A finaliser that runs when nearly all of the interpreter has ended."""
    vars(builtins)["kept"] = _LateStart()


def thread_outlives_main() -> None:
    """The main thread returns while others still work."""
    left = [_ROUNDS] * 2
    turns = iter(range(10**9))
    _start_threads(False, lambda: next(turns) < sum(left))


def os_exit() -> None:
    """The end without any."""
    os._exit(5)


def exit_code() -> None:
    """`sys.exit` while daemon threads compute."""
    sys.exit(3)


def uncaught() -> None:
    """Raise an exception that is not caught."""
    raise InterruptedWorkError("nobody catches this")


_WAYS = {
    function.__name__: function
    for function in (
        handlers_that_raise, alarms, subinterpreters, late_finaliser, thread_outlives_main, os_exit, exit_code,
        uncaught,
    )
}  # fmt: skip


def main(*ways: str) -> None:
    sys.setswitchinterval(0.0005)  # each signal and each snapshot waits for the GIL
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    latch = InputLatch()
    say("ready")
    latch.wait()
    _start_threads(True, lambda: True)  # not before: they would take processors from the exporter that starts
    with LEDGER.span(90) as span:
        for _ in range(50):
            wait(90)
        context = span.get_span_context()
        say("last", {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"})
    for way in ways:
        _WAYS[way]()


if __name__ == "__main__":
    main(*sys.argv[1:])
