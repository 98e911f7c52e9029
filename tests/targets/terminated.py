"""A program that SIGTERM ends by its default action, in one of many states: ``terminated.py STATE``.

Works in a marked function, prints ``ready`` and the process that is to be ended, and goes on as STATE says. Before it
sends a signal itself, it waits for a line on standard input.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from marked_work import LEDGER, load_exporter, say, wait, work
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler


def waiting() -> None:
    """The main thread waits outside of Python."""
    signal.pause()


def busy() -> None:
    """The main thread computes."""
    while True:
        pass


def stuck() -> None:
    """The main thread is in C code, and never gives the GIL up."""
    sum(range(10**15))


def raising() -> None:
    """`signal.raise_signal` must not come back."""
    _until_told()
    signal.raise_signal(signal.SIGTERM)
    say("survived")


def killing() -> None:
    """`os.kill` of the process itself must not come back."""
    _until_told()
    os.kill(os.getpid(), signal.SIGTERM)
    say("survived")


def blocking() -> None:
    """The signal comes while the main thread blocks it, as for a section that must be whole."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    say("blocked")
    _until_told()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    say("survived")


def stopping() -> None:
    """The signal comes while the main thread stops or starts the profiler."""
    while True:
        splunk_profiler.stop()
        assert splunk_profiler.start()


def threadless() -> None:
    """There is no room for the stack of another thread."""
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
    with suppress(RuntimeError):
        while True:  # stacks of threads that have ended are used again
            threading.Thread(target=signal.pause, daemon=True).start()
    killing()


def timerless() -> None:
    """The system gives no timer: the profiler starts, and SIGTERM ends the process at once."""
    splunk_profiler.stop()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
        assert splunk_profiler.start()
        killing()
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def forking() -> None:
    """A child that is forked between the signal and the end of its parent."""
    _get_signal_with_gil()
    if os.fork() == 0:
        sys.setswitchinterval(0.005)
        assert splunk_profiler.start()
        _work()
        say("child", os.getpid())
        _until_told()
        say("goes on")
        splunk_profiler.stop()
        os._exit(0)
    signal.pause()


def changing() -> None:
    """The application ignores the signal when it has come already, and then keeps the GIL."""
    _get_signal_with_gil()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stuck()


def _get_signal_with_gil() -> None:
    """Return when SIGTERM of another process has been handled, and no other thread has had the GIL since it was sent.

    A thread that Python does not know gets it, and ends with the handler: the main thread would go no further.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    holding_gil, thread = ctypes.PyDLL(None), ctypes.c_ulong()
    take, no_signals = ctypes.cast(holding_gil.sigsuspend, ctypes.c_void_p), ctypes.create_string_buffer(128)
    assert holding_gil.pthread_create(ctypes.byref(thread), None, take, no_signals) == 0
    sender = subprocess.Popen(["sh", "-c", f"read line; kill -TERM {os.getpid()}"], stdin=subprocess.PIPE)
    assert sender.stdin is not None
    sys.setswitchinterval(3600)
    holding_gil.write(sender.stdin.fileno(), b"go\n", 3)
    assert holding_gil.pthread_join(thread, None) == 0
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # for that of the time limit


def thread_raising() -> None:
    """A thread's `signal.raise_signal` must not come back."""
    _on_thread(lambda: signal.raise_signal(signal.SIGTERM))


def thread_killing() -> None:
    """A thread's `os.kill` of the process ends the thread, too."""
    _on_thread(lambda: os.kill(os.getpid(), signal.SIGTERM))


def _on_thread(end: Callable[[], object]) -> None:
    def run() -> None:
        _until_told()
        end()
        sum(range(10**7))  # longer than the system needs to end all threads; keeps the GIL
        say("survived")
        os._exit(3)

    threading.Thread(target=run).start()
    signal.pause()


def restoring() -> None:
    """A handler comes and goes, as uvicorn's does."""
    heard: list[int] = []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.signal(signal.SIGTERM, lambda number, _: heard.append(number)) == signal.SIG_DFL
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert callable(signal.signal(signal.SIGTERM, signal.SIG_DFL))
    raising()


def ignoring() -> None:
    """Ignore the signal; the process continues."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGTERM)
    splunk_profiler.stop()
    os.kill(os.getpid(), signal.SIGTERM)
    say("goes on", signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)


def stopped() -> None:
    """The profiler has been stopped."""
    splunk_profiler.stop()
    raising()


def forked() -> None:
    """A child that has not begun a life of its own: it starts no profiler."""
    splunk_profiler.stop()
    assert splunk_profiler.start()
    child = os.fork()
    while child == 0:  # until it ends: where its own profiler has the signal, the call returns
        signal.pause()
    os.kill(child, signal.SIGTERM)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _work() -> None:
    with LEDGER.span(7):
        for _ in range(50):
            work(7)
            wait(7)


def _child() -> None:
    load_exporter()  # what is made anew has nothing yet, and there is little time at the end
    assert splunk_profiler.start()
    _work()
    say("ready", os.getpid())
    signal.pause()


def multiprocessing_fork() -> None:
    """`Process.terminate` of a forked child."""
    _terminate_child("fork")


def multiprocessing_spawn() -> None:
    """`Process.terminate` of a child that was made anew."""
    _terminate_child("spawn")


def _terminate_child(method: str) -> None:
    multiprocessing.set_start_method(method)
    child = multiprocessing.Process(target=_child)
    child.start()
    _until_told()
    child.terminate()
    child.join()
    say("child", child.exitcode)


def _until_told() -> None:
    open(0, "rb", buffering=0, closefd=False).readline()  # noqa: SIM115


_STATES = {
    function.__name__: function
    for function in (
        waiting, busy, stuck, raising, killing, blocking, stopping, threadless, timerless, forking, changing,
        thread_raising, thread_killing, restoring, ignoring, stopped, forked, multiprocessing_fork,
        multiprocessing_spawn,
    )
}  # fmt: skip


def main(state: str) -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not state.startswith("multiprocessing"):
        _work()
        say("ready", os.getpid())
    _STATES[state]()


if __name__ == "__main__":
    main(sys.argv[1])
