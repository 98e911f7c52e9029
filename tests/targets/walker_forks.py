"""A process that forks with a walker at work at 2 kHz: ``walker_forks.py HOW``; parent and child say how it went."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

from splunk_profiler import _walker as walker

Ticker = walker.Ticker[str, "tuple[str, ...]"]
FORKS = 40
DEADLINE_S = 30.0
IN_A_THREAD = " in a thread"
C_FORKS = {  # they run no Python hooks
    "C code": ctypes.PyDLL(None).fork,
    "C code without the GIL": ctypes.CDLL(None).fork,  # another thread holds it meanwhile
}


def start() -> tuple[Ticker, threading.Thread]:
    ticker: Ticker = walker.Ticker(
        context_var=None,
        max_depth=50,
        make_frame=lambda code, _offset, _globals: code.co_name,
        make_stack=lambda frames, _truncated: frames,
        ring_size=4,
        trace_filter=None,
    )
    run = threading.Thread(target=ticker.run, args=(500_000,), daemon=True)
    run.start()
    return ticker, run


def samples(ticker: Ticker) -> bool:
    return any(thread.stack for snapshot in ticker.drain(10_000_000_000) for thread in snapshot.threads)


class Process:
    """The walker of this process; in a forked child a new one, once the child was noticed."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.noticed = threading.Event()
        self.ticker, self.run = start()

    def in_child(self) -> None:
        if self.pid != os.getpid():
            self.pid = os.getpid()
            self.noticed.set()

    def child(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.noticed.is_set() and time.monotonic() < deadline:
            time.sleep(0.001)  # as an application would: runs Python, and waits now and then
        said = ["noticed" if self.noticed.is_set() else "not noticed"]
        old = self.ticker
        old.run(1)  # neither the inherited ticker nor its locks may hold the child up
        old.stop()
        old.drain(1_000_000_000)
        old.capture()
        mine, run = start()
        run.join(0)
        threads = mine.drain(10_000_000_000)[-1].threads
        alone = len([thread for thread in threads if thread.native_id in {0, os.getpid()}]) >= 1
        said += [
            "alone" if alone and not old.drain(0) else "not alone",
            "sampling" if samples(mine) else "not sampling",
        ]
        print("child", ", ".join(said), flush=True)
        os._exit(0)

    def wait(self, child: int) -> None:
        _, status = os.waitpid(child, 0)
        if status != 0:
            print("the child ended with", status, flush=True)
            os._exit(3)


def busy(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


def busy_as_one_of_ours(over: threading.Event) -> None:
    """Compute on a thread marked as the profiler's; it must not hold the GIL when C code forks."""
    walker.mark_profiler_thread(True)
    while not over.wait(0.0001):
        sum(range(1000))
    walker.mark_profiler_thread(False)


def fork_once(process: Process, how: str) -> None:
    if how == "exec":
        subprocess.run(["true"], check=True, preexec_fn=lambda: None)
        return
    child = C_FORKS.get(how.removesuffix(IN_A_THREAD), os.fork)()
    if child == 0:
        if how == "twice":
            grandchild = os.fork()
            if grandchild != 0:
                os._exit(os.waitpid(grandchild, 0)[1])
        process.child()
    process.wait(child)


def fork_often(process: Process, how: str) -> None:
    for _ in range(FORKS):
        fork_once(process, how)


def main(how: str) -> None:
    sys.setswitchinterval(0.0005)  # each fork waits for the GIL
    process = Process()
    walker.set_after_fork_in_child(process.in_child)
    if "C code" not in how:
        os.register_at_fork(after_in_child=process.in_child)  # as in a service
    over = threading.Event()
    others = [
        threading.Thread(target=busy_as_one_of_ours if how == "C code without the GIL" else busy, args=(over,))
        for _ in range(2)
    ]
    for thread in others:
        thread.start()
    if how.endswith(IN_A_THREAD):
        # One thread for all: while one ends it has locks of AddressSanitizer's allocator, which stay locked in a child.
        thread = threading.Thread(target=fork_often, args=(process, how))
        thread.start()
        thread.join()
    else:
        fork_often(process, how)
    print("parent", "sampling" if samples(process.ticker) else "not sampling", flush=True)
    over.set()
    for thread in others:
        thread.join()
    walker.set_after_fork_in_child(None)
    process.ticker.stop()
    process.run.join()


if __name__ == "__main__":
    main(sys.argv[1])
