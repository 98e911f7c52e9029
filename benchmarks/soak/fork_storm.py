"""Forks in every way while records are exported: ``os.fork``, `multiprocessing`, and C code without the GIL.

First the main thread forks in C code whose children return to Python. The application has no other thread then: a
child would wait forever for one that had the GIL. Then two threads fork and four work in spans. Most children end at
once; some work in a span and stop the profiler, which writes a line to the ledger. A child that runs longer than
`HANG_S` writes its stacks and is killed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import splunk_profiler
from soak.harness import HANG_S, ScenarioHarness, stacks_of

FORKING_THREADS = 2
WORKING_THREADS = 4
WORKING_SHARE = 0.03  # share of the children that work before they end
RETURN_SHARE = 0.05  # share of the forks whose child returns from C code to Python
SOURCE = Path(__file__).with_name("forking.c")
_MULTIPROCESSING: Any = multiprocessing.get_context("fork")


def library() -> tuple[Any, Any] | None:
    """Compile the C library and load it for calls without and with the GIL; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        built = str(Path(folder) / "forking.so")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", built], check=True)
        return ctypes.CDLL(built), ctypes.PyDLL(built)


class Storm:
    """The forks and the fate of their children.

    Attributes:
        forks: counts by way.
        faults: counts of faults.
    """

    def __init__(self, harness: ScenarioHarness, built: tuple[Any, Any] | None) -> None:
        self.forks: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._harness = harness
        self._forking = threading.Lock()  # gRPC aborts a process in which two threads fork at once
        self._call_c_code: Callable[[], object] = lambda: None
        self._fork_methods: list[tuple[str, Callable[[], int]]] = [("os.fork", os.fork)] * 5
        if built is not None:
            without_gil, with_gil = built
            self._call_c_code = with_gil.soak_touch
            self._fork_methods += [
                ("C code with the GIL", with_gil.soak_fork_exit),
                ("C code without the GIL", without_gil.soak_fork_exit),
                ("C code with a lock", without_gil.soak_fork_holding),
                ("a thread of C", without_gil.soak_fork_on_thread),
            ]

    def work(self) -> None:
        """Run a thread of the application."""
        while not self._harness.is_over:
            with self._harness.tracer.start_as_current_span("work"):
                sum(index * index for index in range(2000))
                self._call_c_code()
                time.sleep(0.002)

    def fork(self) -> None:
        """Fork again and again."""
        rng = random.Random(threading.get_native_id())
        while not self._harness.is_over:
            with self._harness.tracer.start_as_current_span("fork"):
                if rng.random() < WORKING_SHARE / 2:
                    self._multiprocess()
                else:
                    self.fork_once(*rng.choice(self._fork_methods), does_work=rng.random() < WORKING_SHARE)

    def fork_once(self, fork_method: str, fork: Callable[[], int], *, does_work: bool) -> None:
        """Fork, and wait for the child."""
        with self._forking:
            child = fork()
            if child == 0:
                _run_child(self._harness, does_work)
        self._await_end(fork_method, child, partial(_wait_for, child))

    def _multiprocess(self) -> None:
        process = _MULTIPROCESSING.Process(target=_work_in_child, args=(self._harness,))
        with self._forking:
            process.start()

        def wait(timeout_s: float) -> int | None:
            process.join(timeout_s)
            return process.exitcode  # type: ignore[no-any-return]

        self._await_end("multiprocessing", process.pid, wait)
        if process.exitcode is not None:
            process.close()

    def _await_end(self, fork_method: str, child: int, wait: Callable[[float], int | None]) -> None:
        status = wait(HANG_S)
        if status is None:
            self.faults[f"{fork_method}: child hangs"] += 1
            stacks_of(child)
            os.kill(child, signal.SIGKILL)
            wait(HANG_S)
        elif status:
            self.faults[f"{fork_method}: child ended with {status}"] += 1
        self.forks[fork_method] += 1
        self._harness.add_done()


def _run_child(harness: ScenarioHarness, does_work: bool) -> None:
    """Run the child and exit; never return."""
    try:
        if does_work:
            _work_in_child(harness)
            splunk_profiler.stop(HANG_S / 2)
        os._exit(0)
    finally:
        os._exit(9)


def _work_in_child(harness: ScenarioHarness) -> None:
    with harness.tracer.start_as_current_span("child"):
        for _ in range(20):
            sum(index * index for index in range(2000))
            time.sleep(0.002)


def _wait_for(child: int, timeout_s: float) -> int | None:
    """Wait for the child and return its exit code; None if it still runs after that time."""
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], timeout_s)[0]:
            return None
    finally:
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Run the storm."""
    harness = ScenarioHarness()
    built = library()
    storm = Storm(harness, built)
    if built is not None and os.environ["SPLUNK_PROFILER_WALKER"] != "portable":  # hooks do not run for forks of C code
        rng = random.Random(1)
        for _ in range(int(harness.count * RETURN_SHARE)):
            if not harness.is_over:
                storm.fork_once("C code, back in Python", built[0].soak_fork, does_work=rng.random() < WORKING_SHARE)
    working = [threading.Thread(target=storm.work) for _ in range(WORKING_THREADS)]
    for thread in working:
        thread.start()
    harness.run_on_threads(storm.fork, FORKING_THREADS)
    for thread in working:
        thread.join()
    harness.end(forks=storm.forks, faults=storm.faults)


if __name__ == "__main__":
    main()
