"""Facts about threads that last from one capture to the next: their numbers, names and starts.

Runs on the sampler thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from splunk_profiler.raw import RawThread
from splunk_profiler.system.printable import shortened
from splunk_profiler.system.threads import active_threads, read_proc_file

MAX_NUMBER = 1 << 31  # half of what its field in the stream takes
_MAX_TRANSIENT_THREADS = 16_384


@dataclass(slots=True)
class ThreadInfo:
    """A thread as of its last capture.

    Attributes:
        number: in the order of first sight, from 1. After two billion it begins anew with what no thread has.
        start_ns: start on the boot-time clock, with the earliest and the latest instant; zeros if not known.
        python_thread: the `threading.Thread`, which ends with the application's last use of it; None if there is
            none, or none was seen yet.
    """

    number: int
    ident: int
    native_id: int
    name: str
    start_ns: tuple[int, int]
    python_thread: weakref.ref[threading.Thread] | None = None
    given_name: str | None = None  # of which `name` was made

    def update_name(self, python_thread: threading.Thread | None = None) -> bool:
        """Take over the current name; `python_thread` is None if the walker did not see it. Return True if it is new.

        A daemon may rename a thread that waits, so this is asked of all threads.
        """
        if python_thread is not None:
            self.python_thread = weakref.ref(python_thread)
        given = None if self.python_thread is None else _given_name(self.python_thread())
        if given is self.given_name:
            return False
        self.given_name = given
        name = shortened(given or "")
        is_new = bool(name) and name != self.name
        self.name = name if is_new else self.name
        return is_new


class ThreadRegistry:
    """The threads of the last snapshot, those that have ended since, and those that were in none.

    `read_stat` returns the line of a thread in ``/proc/self/task/ID/stat``, or nothing.
    """

    def __init__(self, read_stat: Callable[[int], str]) -> None:
        self._read_stat = read_stat
        self._live: dict[int, ThreadInfo] = {}
        self._ended: dict[int, ThreadInfo] = {}  # left in the last snapshot; late events may refer to them
        self._transient: dict[int, ThreadInfo] = {}  # seen since the last snapshot, and in none
        self._last_number = 0
        self._reuses_numbers = False

    def find(self, raw_thread: RawThread) -> ThreadInfo | None:
        """Return a thread that is known."""
        key = raw_thread.key
        return self._live.get(key) or self._transient.get(key) or self._ended.get(key)

    def add(self, raw_thread: RawThread, instant_ns: int) -> ThreadInfo:
        """Return a new thread, of a capture at `instant_ns`; it is transient until `keep` has it."""
        info = self._describe_thread(raw_thread, self._next_number(), instant_ns)
        if len(self._transient) > _MAX_TRANSIENT_THREADS:
            self._transient.clear()
        self._transient[raw_thread.key] = info
        return info

    def keep(self, keys: Iterable[int], ended_keys: Iterable[int]) -> None:
        """Note that a snapshot has the threads `keys` and, of those of the previous one, no longer `ended_keys`."""
        for key in keys:
            info = self._transient.get(key) or self._ended.get(key)  # a walker may leave out a thread for once
            if info is not None:
                self._live[key] = info
        self._transient.clear()
        self._ended = {key: self._live.pop(key) for key in ended_keys if key in self._live}

    def take_renamed(self) -> list[ThreadInfo]:
        """Return the threads whose names have changed since the last call."""
        return [info for info in self._live.values() if info.update_name()]

    def _next_number(self) -> int:
        number = self._last_number + 1
        if number > MAX_NUMBER:
            number, self._reuses_numbers = 1, True
        if self._reuses_numbers:
            known = {info.number for part in (self._live, self._ended, self._transient) for info in part.values()}
            number = next(each for each in count(number) if each not in known)
        self._last_number = number
        return number

    def _describe_thread(self, raw_thread: RawThread, number: int, instant_ns: int) -> ThreadInfo:
        """Describe a thread on its first capture; it may have ended since, and another one may have its ids."""
        ident, native_id = raw_thread.ident, raw_thread.native_id
        known = raw_thread.python_thread
        if known is None:
            known = _find_python_thread(ident, native_id)
        stat = self._read_stat(native_id) if native_id > 0 else ""
        start_ns = _start_time(stat)
        is_another = start_ns[0] > instant_ns
        given = _given_name(known)
        name = shortened(given or "")
        if not name and not is_another:
            name = self._os_thread_name(native_id, stat)
        start_ns = (0, 0) if is_another else start_ns
        ref = None if known is None else weakref.ref(known)
        return ThreadInfo(number, ident, native_id, name or f"Thread-{ident:#x}", start_ns, ref, given)

    def _os_thread_name(self, native_id: int, stat: str) -> str:
        """Return the operating system's name of a thread; empty if it is only the name of the process."""
        if native_id == os.getpid():
            return "MainThread"
        name = _command_name(stat)
        return name if name != _command_name(self._read_stat(os.getpid())) else ""


def make_stat_reader(*, native: bool) -> Callable[[int], str]:
    """Return the reader of threads' lines in ``/proc``.

    Native code keeps the GIL for it, which beside busy threads would come back after tens of milliseconds.
    """
    if not native:
        return lambda native_id: read_proc_file(f"/proc/self/task/{native_id}/stat")
    from splunk_profiler import _walker  # noqa: PLC0415  # exists on some systems only

    return _walker.read_thread_stat


def _find_python_thread(ident: int, native_id: int) -> threading.Thread | None:
    """Return the `threading.Thread` with this ident, if it surely has this native id too."""
    known = active_threads().get(ident)
    return known if known is not None and native_id and vars(known).get("_native_id") == native_id else None


def _given_name(thread: threading.Thread | None) -> str | None:
    """Return the name, read from the instance: a subclass of the application may have a property for it."""
    name = None if thread is None else vars(thread).get("_name")
    return name if type(name) is str else None


def _command_name(stat: str) -> str:
    return stat[stat.find("(") + 1 : max(stat.rfind(")"), 0)]


def _start_time(stat: str) -> tuple[int, int]:
    """Return the start of a thread on the boot-time clock (resolution: one clock tick, 10 ms); zeros if not known."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return 0, 0
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return int(fields[19]) * tick_ns, (int(fields[19]) + 1) * tick_ns
