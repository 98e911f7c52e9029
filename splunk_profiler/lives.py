"""What is remembered of a thread, and what Python and the system say of it: its names and when it was born.

Runs on the sampling worker's thread. Imports the model and `accounts`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.accounts import Birth
from splunk_profiler.model import Thread


@dataclass(slots=True)
class Life:
    """What is remembered of a thread from one snapshot to the next; `cpu_ns` as of the last one of all threads."""

    thread: Thread
    birth: Birth | None  # on the boot-time clock; None if not known
    cpu_ns: int
    is_sampled: bool = False  # when it was told last

    @property
    def account(self) -> int:
        """Its number in the accounts."""
        return self.thread.native_id or -self.thread.index


def new_life(ident: int, native_id: int, known: threading.Thread | None, index: int) -> Life:
    """A thread that is seen for the first time.

    Args:
        ident, native_id: what the walker says; the latter may be 0.
        known: it as `threading` knows it.
        index: see `Thread`.
    """
    native_id = native_id or (known.native_id if known is not None else 0) or 0
    name = (name_of(known) if known is not None else "") or _name_by_system(native_id) or f"Thread-{ident:#x}"
    return Life(Thread(index, name, ident, native_id), _birth(native_id), 0)


def name_of(thread: threading.Thread) -> str:
    """The thread's name, read past any property that a subclass of the application may have put before it."""
    name = vars(thread).get("_name")
    return name if type(name) is str else ""


def _name_by_system(native_id: int) -> str:
    """The operating system's name of a thread that `threading` does not know, unless it is only the process's."""
    if native_id <= 0:
        return ""
    if native_id == os.getpid():
        return "MainThread"
    names = [_read(f"/proc/self/task/{task}/comm").strip() for task in (native_id, os.getpid())]
    return names[0] if names[0] != names[1] else ""


def _birth(native_id: int) -> Birth | None:
    """When the thread was started, on the boot-time clock (resolution: one clock tick, 10 ms)."""
    fields = _read(f"/proc/self/task/{native_id}/stat").rpartition(")")[2].split() if native_id > 0 else []
    if len(fields) < 20:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Birth(int(fields[19]) * tick_ns, (int(fields[19]) + 1) * tick_ns)


def boottime_ns() -> int:
    """Now, on the clock of `Life.birth`."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
