"""A service whose workers are processes of multiprocessing: ``spawning_service.py METHOD``; works until a line comes.

The profiler is started when the module is imported, so by each worker as well, before there are other threads.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import splunk_profiler

splunk_profiler.start()


def main(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    over = context.Event()
    workers = [context.Process(target=over.wait) for _ in range(2)]
    for worker in workers:
        worker.start()
    sys.stdin.readline()
    over.set()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main(sys.argv[1])
