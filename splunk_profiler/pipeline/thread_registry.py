"""Facts about a thread that last from one snapshot to the next: its names and its start.

Runs on the sampling worker's thread. Imports the model, `raw`, `thread_times` and `system`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from splunk_profiler.model import Thread
from splunk_profiler.pipeline.thread_times import StartTime
from splunk_profiler.raw import RawThread
from splunk_profiler.system.threads import active_threads, read_proc_file


@dataclass(slots=True)
class ThreadInfo:
    """A thread as of the last snapshot.

    Attributes:
        start_time: on the boot-time clock; None if not known.
        cpu_ns: CPU time it had used.
        is_sampled: True if its last change gave a sample.
        python_thread: the `threading.Thread`; None if there is none, or none was seen yet.
    """

    thread: Thread
    start_time: StartTime | None
    cpu_ns: int
    is_sampled: bool = False
    python_thread: threading.Thread | None = None

    @property
    def usage_key(self) -> int:
        """The key of the thread in `ThreadTimes`."""
        return self.thread.native_id or -self.thread.index

    def age_ns(self, at_ns: int) -> int:
        """Return the age at an instant on the boot-time clock; 0 if not known."""
        return 0 if self.start_time is None else max(at_ns - self.start_time.earliest_ns, 1)

    def update_name(self, python_thread: threading.Thread | None) -> None:
        """Take over the current name of the thread; `python_thread` is None if the walker did not see it."""
        self.python_thread = python_thread or self.python_thread
        name = "" if self.python_thread is None else _name_of(self.python_thread)
        if name and name != self.thread.name:
            self.thread = Thread(self.thread.index, name, self.thread.ident, self.thread.native_id)


def make_thread_info(raw_thread: RawThread, index: int, captured_boottime_ns: int) -> ThreadInfo:
    """Describe a thread on its first capture; it may have ended since, and another one may have its ids."""
    ident, native_id = raw_thread.ident, raw_thread.native_id
    known = raw_thread.python_thread or _find_python_thread(ident, native_id)
    start_time = _read_start_time(native_id)
    is_another = start_time is not None and start_time.earliest_ns > captured_boottime_ns
    name = _name_of(known) if known is not None else ""
    if not name and not is_another:
        name = _read_os_thread_name(native_id)
    thread = Thread(index, name or f"Thread-{ident:#x}", ident, native_id)
    return ThreadInfo(thread, None if is_another else start_time, 0, python_thread=known)


def boottime_ns() -> int:
    """Return the current instant on the clock of `ThreadInfo.start_time`."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _find_python_thread(ident: int, native_id: int) -> threading.Thread | None:
    """Return the `threading.Thread` with this ident, if it surely has this native id too."""
    known = active_threads().get(ident)
    return known if known is not None and native_id and vars(known).get("_native_id") == native_id else None


def _name_of(thread: threading.Thread) -> str:
    """Return the name, read from the instance: a subclass of the application may have a property for it."""
    name = vars(thread).get("_name")
    return name if type(name) is str else ""


def _read_os_thread_name(native_id: int) -> str:
    """Return the operating system's name of a thread; empty if it is only the name of the process."""
    if native_id <= 0:
        return ""
    if native_id == os.getpid():
        return "MainThread"
    name, process_name = (read_proc_file(f"/proc/self/task/{task}/comm").strip() for task in (native_id, os.getpid()))
    return name if name != process_name else ""


def _read_start_time(native_id: int) -> StartTime | None:
    """Return the start of a thread on the boot-time clock (resolution: one clock tick, 10 ms)."""
    fields = read_proc_file(f"/proc/self/task/{native_id}/stat").rpartition(")")[2].split() if native_id > 0 else []
    if len(fields) < 20:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return StartTime(int(fields[19]) * tick_ns, (int(fields[19]) + 1) * tick_ns)
