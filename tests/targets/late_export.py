"""A process whose first export comes after the end of its main thread, while the interpreter waits for another one."""

from __future__ import annotations

import threading
import time

import splunk_profiler


def outlive_the_main_thread() -> None:
    threading.main_thread().join()
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    splunk_profiler.stop()


if __name__ == "__main__":
    threading.Thread(target=outlive_the_main_thread).start()
    assert splunk_profiler.start()
