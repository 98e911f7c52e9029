"""A reader of another process, by names and offsets, that stops each thread only for a moment.

Runs on the thread that made the Reader, because the kernel ties stopped threads to their tracer.
Shares no constant with the publisher, because a shared constant would hide a shared mistake.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection

from splunk_profiler.inspector import layouts
from splunk_profiler.inspector.architecture import HEADER_BYTES, Architecture, architecture_of
from splunk_profiler.inspector.errors import MalformedError, NotPythonError, UnreadableError, UnsupportedError
from splunk_profiler.inspector.host import storage_problems
from splunk_profiler.inspector.library_search import LibrarySearch
from splunk_profiler.inspector.maps import Mapping, runs_python
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import (
    Interface,
    Problem,
    ProcessStorage,
    Reason,
    Report,
    ThreadLocalVariable,
    ThreadReading,
)
from splunk_profiler.inspector.proc_files import Task
from splunk_profiler.inspector.process import Process
from splunk_profiler.inspector.reasons import blocked_interfaces, reasons_for
from splunk_profiler.inspector.sockets import socket_problem
from splunk_profiler.inspector.thread_reader import ThreadReader
from splunk_profiler.inspector.tracer import Tracer

_CLOSE_TIMEOUT_S = 1.0


class Reader:
    """A reader of process `pid` for any number of reads.

        with Reader(pid) as reader:
            report = reader.read()        # everything, with reasons
            threads = reader.sample()     # the threads only, by the last refresh

    Args:
        pid: the process.
        strict_host: give values as real host profilers see them, not as the specifications say.
        interfaces: the interfaces to look for; with fewer of them, threads stop for less time.

    Attributes:
        root: the folder below which the paths lie that the process names.

    Raises:
        InspectorError: from the constructor and from every read; the process has ended, or cannot be read.
    """

    def __init__(
        self, pid: int, *, strict_host: bool = False, interfaces: Collection[Interface] = tuple(Interface)
    ) -> None:
        self.pid = pid
        self.strict_host = strict_host
        self._process = Process(pid)
        self.command = self._process.command
        self.root = self._process.proc_path / "root"
        architecture = _architecture(self._process)
        self._memory = Memory(self._process.live_tid)
        self._tracer = Tracer(pid)
        self._thread_reader = ThreadReader(self._memory, architecture, self._tracer, strict_host)
        self._library_search = LibrarySearch(self._process.proc_path, self._memory, architecture, interfaces)
        self._storage: ProcessStorage | None = None
        self._storage_address: int | None = None  # 0 if the pointer to it is null, None if there is no pointer
        self._is_socket_accepted: bool | None = None  # None without a storage
        self._problems: list[Problem] = []
        self._blocked: set[Interface] = set()
        self._variables: dict[Interface, ThreadLocalVariable] = {}
        self.refresh()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release threads that stop within a second; the kernel releases the rest at our exit."""
        self._tracer.detach_pending(_CLOSE_TIMEOUT_S)

    def detach_pending(self) -> bool:
        """Release threads that stopped late, without waiting; return True if none are left."""
        return self._tracer.detach_pending()

    @property
    def storage(self) -> ProcessStorage | None:
        """The last process storage; None without one, or (strict) if a host profiler refuses it."""
        is_refused = self.strict_host and Interface.ELASTIC in self._blocked
        return None if is_refused else self._storage

    def reasons(self) -> tuple[Reason, ...]:
        """Return the reasons of the last refresh, worst first, without those of threads."""
        return reasons_for(self._problems, ())

    def mappings(self) -> list[Mapping]:
        """Return the current mappings of the process, by ascending address."""
        return self._process.mappings()

    def has_storage_moved(self) -> bool:
        """Return True if the process names another storage than at the last refresh; a cheap check."""
        pointer = self._storage_pointer()
        if pointer is None:
            return False
        try:
            return self._memory.read_word(pointer) != self._storage_address
        except UnreadableError:  # it executed another program, or the pointer was never readable
            return self._storage_address is not None

    def refresh(self) -> None:
        """Read the mappings, the process storage and the state of its socket again."""
        self._process.raise_if_ended()
        mappings, program = self._process.mappings(), self._process.program()
        search = self._library_search
        search.run(mappings, program)
        if all(problem.code == "library-not-loaded" for problem in search.problems) and not (
            search.libraries or runs_python(mappings)
        ):
            raise NotPythonError(f"process {self.pid} ({program}) does not run Python and publishes nothing")
        self._problems = search.problems + self._read_storage()
        self._blocked = blocked_interfaces(self._problems)
        # As a host profiler follows static TLS only, "tls-dynamic" is among the blocking problems.
        self._variables = {
            interface: library.variable
            for interface, library in search.libraries.items()
            if library.variable.is_found and not (self.strict_host and interface in self._blocked)
        }

    def read(self) -> Report:
        """Refresh and return everything, with the reasons why a host profiler would see less."""
        time_ns = time.time_ns()
        self.refresh()
        threads = self.sample()
        problems = self._problems.copy()
        if Interface.ELASTIC not in self._blocked and not any(thread.correlation for thread in threads):
            problems.append(Problem(Interface.ELASTIC, "no-thread-publishes"))
        if Interface.LABELS not in self._blocked and all(thread.labels is None for thread in threads):
            problems.append(Problem(Interface.LABELS, "no-thread-publishes"))
        return Report(
            pid=self.pid,
            command=self.command,
            time_ns=time_ns,
            strict_host=self.strict_host,
            libraries=tuple(self._library_search.libraries.values()),
            storage=self.storage,
            socket_accepted=self._is_socket_accepted,
            threads=threads,
            reasons=reasons_for(problems, threads),
        )

    def sample(self, *, running: bool = False, code: bool = False) -> tuple[ThreadReading, ...]:
        """Read all threads, except those that end meanwhile.

        Args:
            running: skip threads that neither run nor wait for a processor.
            code: also read each thread's instruction pointer.
        """
        tasks = [task for task in self._process.tasks() if task.is_running or not running]
        readings = self._visit(tasks, code)
        if not readings and (tasks or not running):
            self._process.raise_if_ended()
        return tuple(readings)

    def _visit(self, tasks: list[Task], code: bool) -> list[ThreadReading]:
        by_tid = {task.tid: task for task in tasks if task.can_stop} if self._variables else {}
        results = self._tracer.visit(
            tuple(by_tid), lambda tid: self._thread_reader.read(by_tid[tid], self._variables, code=code)
        )
        readings = []
        for task in tasks:
            reading = results.get(task.tid)
            if reading is not None:
                readings.append(reading)
            elif task.is_alive and (task.tid not in by_tid or task.tid in self._tracer.pending_tids):
                readings.append(ThreadReading(task.tid, task.name, None, None, was_stopped=False))
        return readings

    def _storage_pointer(self) -> int | None:
        library = self._library_search.libraries.get(Interface.ELASTIC)
        return None if library is None else library.process_wide

    def _read_storage(self) -> list[Problem]:
        """Read the process storage and try its socket; return what is wrong with them."""
        self._storage = self._storage_address = self._is_socket_accepted = None
        pointer = self._storage_pointer()
        if pointer is None:
            return []
        try:
            self._storage_address = self._memory.read_word(pointer)
            if not self._storage_address:
                return [Problem(Interface.ELASTIC, "storage-null")]
            self._storage = layouts.read_storage(self._memory.read, self._storage_address)
        except (UnreadableError, MalformedError) as error:
            return [Problem(Interface.ELASTIC, "storage-unreadable", str(error))]
        socket = socket_problem(self.root, self._storage.socket_path)
        self._is_socket_accepted = socket is None
        return [*storage_problems(self._storage), *([] if socket is None else [socket])]


def _architecture(process: Process) -> Architecture:
    architecture = architecture_of(process.program_header(HEADER_BYTES))
    if architecture.name != platform.machine():
        raise UnsupportedError(f"its program is for {architecture.name} and this machine is {platform.machine()}")
    return architecture
