"""Forks, or fails to, and then has a thread of the profiler write a log line: ``lines_after_forks.py HOW LEVEL``.

HOW is ``os.fork`` or ``forkpty``, which finds no descriptor for its terminal. LEVEL is that of the log at the start of
the profiler; then it is INFO. Says whether the thread has written its
line: in the parent, and in a child.
"""

from __future__ import annotations

import logging
import os
import resource
import sys

import splunk_profiler
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Worker

_WAIT_S = 60.0


def write_line() -> bool:
    worker = Worker("writer", lambda: logger.error("a line"))
    worker.start()
    return worker.join(_WAIT_S)


def fork_without_descriptors() -> int:
    """Return the exit code of a child, or -1 if there was none, as there should not be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        child, _ = os.forkpty()
    except OSError:
        return -1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if child == 0:
        os._exit(1)
    return os.waitpid(child, 0)[1]


def fork() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0 if write_line() else 1)
    return os.waitpid(child, 0)[1]


def main(how: str, level: str) -> None:
    """Say what became of the lines."""
    logging.basicConfig(level=level)
    assert splunk_profiler.start()
    logging.getLogger().setLevel(logging.INFO)
    status = fork() if how == "os.fork" else fork_without_descriptors()
    print("status", status, flush=True)
    print("parent", write_line(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
