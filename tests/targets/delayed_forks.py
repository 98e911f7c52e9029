"""Forks while another thread delays forks now and then, as one of ours does that writes a log line, and threads end."""

from __future__ import annotations

import os
import threading
import time
import warnings

from splunk_profiler import _walker

_FORKS = 100
_OVER = threading.Event()


def delay() -> None:
    while not _OVER.is_set():
        _walker.delay_forks(True)
        time.sleep(0.005)
        _walker.delay_forks(False)


def churn() -> None:
    while not _OVER.is_set():
        threads = [threading.Thread(target=int) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main() -> None:
    """Fork, and say so when all is over."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
    _walker.set_after_fork_in_child(lambda: None)
    running = [threading.Thread(target=body) for body in (delay, churn, churn)]
    for thread in running:
        thread.start()
    for _ in range(_FORKS):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    _OVER.set()
    for thread in running:
        thread.join()
    _walker.prepare_fork(True)
    _walker.delay_forks(True)  # a line between the hooks of a fork, on the thread that forks
    _walker.delay_forks(False)
    _walker.prepare_fork(False)
    print("over", flush=True)


if __name__ == "__main__":
    main()
