"""C code forks this process while `threading` is at work: prints ``child STATUS`` when the child has worked."""

from __future__ import annotations

import ctypes
import os
import threading

from marked_work import LEDGER, say, work
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler


def main() -> None:
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    begun, over = threading.Event(), threading.Event()

    def hold_the_lock_of_threading() -> None:
        with vars(threading)["_active_limbo_lock"]:
            begun.set()
            over.wait()

    threading.Thread(target=hold_the_lock_of_threading).start()
    begun.wait()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        for _ in range(20):
            with LEDGER.span(7):
                work(7)
        splunk_profiler.stop()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    over.set()
    say("child", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
