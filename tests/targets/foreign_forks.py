"""Forks of C code that knows nothing of Python: ``foreign_forks.py HOW LIBRARY``; says how many went well.

HOW is ``lock`` (C code forks without the GIL and holds a lock that a thread with the GIL waits for, while all that
another one allocates is sampled); ``os.fork``,
``C code without the GIL`` or ``thread of C code`` (a library takes the GIL before each fork, while other threads tell
tickers what to do); ``queue`` (many forks while the main thread runs no Python); ``kept`` (one fork without the GIL,
which a thread of the profiler has kept for longer than any waiter is patient), ``kept, native thread`` (the same on a
thread that Python does not know) or ``used, native thread`` (the profiler's thread is about to release it); or
``log os.fork`` and ``log C code`` (while a thread of the profiler writes log lines; each child writes one too). With
``log os.fork`` a profiler runs, whose hooks wait for these lines.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from walker_forks import C_FORKS, start

import splunk_profiler
from splunk_profiler import _walker as walker
from splunk_profiler.lifecycle import process as _process  # noqa: F401  # as in a service: it hands lines to handlers
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Worker

FORKS = 300
FORKS_BESIDE_LINES = 60
KEPT_MS = 1_000
CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)  # kept: it is called later


def _until(over: threading.Event, turn: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        while not over.is_set():
            turn()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _fork() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _allocate() -> None:
    _ = [bytes(size) for size in range(300)]


def _fill_queue() -> int:
    """Of 16 calls that are posted after many forks, how many find room, while the main thread runs no Python."""
    posted: list[int] = []
    over = threading.Lock()
    over.acquire()

    def fork() -> None:
        for _ in range(FORKS):
            assert _fork() == 0
        posted.extend(ctypes.pythonapi.Py_AddPendingCall(CALL, None) for _ in range(16))
        over.release()

    threading.Thread(target=fork).start()
    over.acquire()
    return posted.count(0)


def _fork_into_python(library: ctypes.CDLL) -> int:
    child: int = library.fork_while_kept(KEPT_MS)
    if child == 0:
        os._exit(sum([0]))
    return os.waitpid(child, 0)[1]


FORKS_WHILE_KEPT: dict[str, Callable[[ctypes.CDLL], int]] = {
    "kept": _fork_into_python,
    "kept, native thread": lambda library: int(library.fork_on_thread_while_kept()),
    "used, native thread": lambda library: int(library.fork_on_thread_while_used()),
}


def _fork_while_kept(library: ctypes.CDLL, fork: Callable[[ctypes.CDLL], int]) -> int:
    """Fork while one of our threads keeps the GIL; return the status of the child, which enters Python."""

    def keep() -> None:
        walker.mark_profiler_thread(True)
        library.keep_gil()
        walker.mark_profiler_thread(False)

    library.prepare_to_keep()
    keeper = threading.Thread(target=keep)
    keeper.start()
    status = fork(library)
    keeper.join()
    return status


class SlowFile(logging.Handler):
    """Has a lock of its own, as files and sockets have, and waits with it: without the GIL."""

    def __init__(self) -> None:
        super().__init__()
        self.file_lock = threading.Lock()

    def emit(self, _record: logging.LogRecord) -> None:
        if not self.file_lock.acquire(timeout=10):
            os._exit(4)
        time.sleep(0.002)
        self.file_lock.release()


def _fork_beside_lines(fork: Callable[[], int]) -> int:
    """Fork while one of our threads writes lines; return how many children could write one."""
    over = threading.Event()
    has_begun = threading.Event()
    file = SlowFile()
    logger.addHandler(file)
    logger.propagate = False

    def write() -> None:
        while not over.is_set():
            logger.warning("a line")
            has_begun.set()

    worker = Worker("writer", write)
    worker.start()
    has_begun.wait()
    statuses = []
    for _ in range(FORKS_BESIDE_LINES):
        child = fork()
        if child == 0:
            file.emit(logging.makeLogRecord({}))
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])
    over.set()
    worker.join(10)
    return statuses.count(0)


def main(how: str, path: str) -> None:
    sys.setswitchinterval(0.0005)  # each fork waits for the GIL
    over = threading.Event()
    library, with_gil = ctypes.CDLL(path), ctypes.PyDLL(path)
    forks: dict[str, Callable[[], int]] = {
        "os.fork": _fork,
        "C code without the GIL": library.fork_with_lock,
        "thread of C code": library.fork_on_thread,
    }
    if how in forks:
        assert library.handle_forks() == 0  # before the walker's handlers, and so after them at each fork
    ticker, run = start()
    walker.set_after_fork_in_child(lambda: None)
    if how == "queue":
        print("posted", _fill_queue(), flush=True)
        threads: list[threading.Thread] = []
    elif how in FORKS_WHILE_KEPT:
        print("status", _fork_while_kept(library, FORKS_WHILE_KEPT[how]), flush=True)
        threads = []
    elif how.startswith("log "):
        if how == "log os.fork":
            assert splunk_profiler.start(
                splunk_profiler.Config(enabled=True, output=f"stream:{Path(path).parent}/kept")
            )
        print("went well", _fork_beside_lines(C_FORKS.get(how[4:], os.fork)), flush=True)
        threads = []
    elif how == "lock":
        ticker.start_allocations(1, True)
        drain: Callable[[], object] = lambda: (ticker.drain(1_000), ticker.drain_allocations())  # noqa: E731
        threads = [_until(over, turn) for turn in (_allocate, with_gil.want_lock, drain)]
        went_well = sum(library.fork_with_lock() == 0 for _ in range(FORKS // 2))
        walker.set_after_fork_in_child(None)  # nobody has the GIL for a fork, which may be in the middle of a hook
        went_well += sum(library.fork_with_lock() == 0 for _ in range(FORKS // 2))
        print("went well", went_well, flush=True)
    else:

        def tell() -> None:
            ticker.set_periods(500_000)
            ticker.capture()
            walker.set_after_fork_in_child(lambda: None)
            other = walker.Ticker(
                context_var=None,
                max_depth=1,
                make_frame=lambda _code, _offset, _globals: "",
                make_stack=lambda _frames, _truncated: (),
                ring_size=1,
                trace_filter=({}, "span"),
            )
            other.notify_trace_added()
            other.stop()

        threads = [_until(over, tell), _until(over, tell)]
        print("went well", sum(forks[how]() == 0 for _ in range(FORKS)), flush=True)
    over.set()
    for thread in threads:
        thread.join()
    walker.set_after_fork_in_child(None)
    ticker.stop()
    run.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
