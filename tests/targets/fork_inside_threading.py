"""C code forks this process while `threading` is at work: the child works until the command to end.

Prints ``forked PID``, and ``child STATUS`` once that has ended.
"""

from __future__ import annotations

import ctypes
import os
import threading

from marked_work import LEDGER, load_exporter, say, work
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler


def _is_silent(descriptor: int) -> bool:
    try:
        return not os.read(descriptor, 1)
    except BlockingIOError:
        return True


def main() -> None:
    load_exporter()
    trace.set_tracer_provider(TracerProvider())
    assert splunk_profiler.start()
    begun, over = threading.Event(), threading.Event()

    def hold_the_lock_of_threading() -> None:
        with vars(threading)["_active_limbo_lock"]:
            begun.set()
            over.wait()

    threading.Thread(target=hold_the_lock_of_threading).start()
    begun.wait()
    read_end, write_end = os.pipe()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        os.set_blocking(read_end, False)
        while _is_silent(read_end):
            with LEDGER.span(7):
                work(7)
        splunk_profiler.stop()
        os._exit(0)
    say("forked", child)
    open(0, "rb", buffering=0, closefd=False).readline()  # noqa: SIM115
    os.write(write_end, b"end")
    status = os.waitpid(child, 0)[1]
    over.set()
    say("child", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
