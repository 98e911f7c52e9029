"""A reader of another process, by names and offsets, that stops each thread only for a moment.

Runs on the thread that made the Reader, because the kernel ties stopped threads to their tracer.
Shares no constant with the publisher, because a shared constant would hide a shared mistake.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from splunk_profiler.inspector import layouts
from splunk_profiler.inspector.architecture import HEADER_BYTES, Architecture, architecture_of
from splunk_profiler.inspector.errors import (
    MalformedError,
    NotPythonError,
    ProcessEndedError,
    UnreadableError,
    UnsupportedError,
)
from splunk_profiler.inspector.host import storage_problems
from splunk_profiler.inspector.maps import Mapping, runs_python
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import (
    Interface,
    MemoryRange,
    Problem,
    ProcessStorage,
    Reason,
    Report,
    ThreadReading,
)
from splunk_profiler.inspector.process import Process, Task
from splunk_profiler.inspector.published import ThreadMemory
from splunk_profiler.inspector.publishers import PublisherFinder, SearchResult, ThreadLocalVariable
from splunk_profiler.inspector.reasons import blocked_interfaces, reasons_for
from splunk_profiler.inspector.sockets import socket_problem
from splunk_profiler.inspector.tracer import Tracer

_CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class _StorageReading:
    """The last reading of the process storage.

    Attributes:
        address: None if there is no pointer to the storage, or it cannot be read; 0 if it is null.
        storage: None if there is none or it cannot be decoded.
        problems: of the storage and its socket.
        socket_accepted: None without a storage.
    """

    address: int | None = None
    storage: ProcessStorage | None = None
    problems: tuple[Problem, ...] = ()
    socket_accepted: bool | None = None


class Reader:
    """A reader of process `pid` for any number of reads.

        with Reader(pid) as reader:
            report = reader.read()        # everything, with reasons
            threads = reader.sample()     # the threads only, by the last refresh
            thread = reader.sample_one(tid)

    Args:
        pid: the process.
        strict_host: give values as real host profilers see them, not as the specifications say.
        interfaces: the interfaces to look for; with fewer of them, threads stop for less time.

    Attributes:
        root: the folder below which the paths lie that the process names.

    Raises:
        InspectorError: the process cannot be read (see `errors`).
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
        self._thread_memory = ThreadMemory(self._memory, architecture, strict_host)
        self._tracer = Tracer(pid, architecture)
        self._finder = PublisherFinder(self._process.proc_path, self._memory, architecture, interfaces)
        self._search_result = SearchResult()
        self._storage_reading = _StorageReading()
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
        is_refused = self.strict_host and Interface.ELASTIC in blocked_interfaces(self._problems())
        return None if is_refused else self._storage_reading.storage

    def reasons(self) -> tuple[Reason, ...]:
        """Return the reasons of the last refresh, worst first, without those of threads."""
        return reasons_for(self._problems(), ())

    def code(self) -> list[Mapping]:
        """Return the current mappings of code by ascending address."""
        return self._process.code()

    def has_storage_moved(self) -> bool:
        """Return True if the process names another storage than at the last refresh; a cheap check.

        Raises:
            ProcessEndedError: the process has ended.
        """
        pointer = self._storage_pointer()
        if pointer is None:
            return False
        try:
            return self._memory.read_word(pointer) != self._storage_reading.address
        except UnreadableError:  # it executed another program, or the pointer was never readable
            return self._storage_reading.address is not None

    def refresh(self) -> None:
        """Read the mappings, the process storage and the state of its socket again.

        Raises:
            InspectorError: the process cannot be read (see `errors`).
        """
        self._process.raise_if_ended()
        mappings, program = self._process.mappings(), self._process.program()
        search = self._finder.search(mappings, program)
        if all(problem.code == "library-not-loaded" for problem in search.problems) and not (
            search.publishers or runs_python(mappings)
        ):
            raise NotPythonError(f"process {self.pid} ({program}) does not run Python and publishes nothing")
        self._search_result = search
        self._storage_reading = self._read_storage()
        # As a host profiler follows static TLS only, "tls-dynamic" is among the blocking problems.
        blocked = blocked_interfaces(self._problems()) if self.strict_host else set()
        self._variables = {
            interface: publisher.variable
            for interface, publisher in search.publishers.items()
            if interface not in blocked and publisher.variable is not None
        }

    def read(self) -> Report:
        """Refresh and return everything, with the reasons why a host profiler would see less.

        Raises:
            InspectorError: the process cannot be read (see `errors`).
        """
        time_ns = time.time_ns()
        self.refresh()
        threads = self.sample()
        problems = self._problems()
        blocked = blocked_interfaces(problems)
        if Interface.ELASTIC not in blocked and not any(thread.correlation for thread in threads):
            problems.append(Problem(Interface.ELASTIC, "no-thread-publishes"))
        if Interface.LABELS not in blocked and all(thread.labels is None for thread in threads):
            problems.append(Problem(Interface.LABELS, "no-thread-publishes"))
        return Report(
            pid=self.pid,
            command=self.command,
            time_ns=time_ns,
            strict_host=self.strict_host,
            libraries=tuple(publisher.library for publisher in self._search_result.publishers.values()),
            storage=self.storage,
            socket_accepted=self._storage_reading.socket_accepted,
            threads=threads,
            reasons=reasons_for(problems, threads),
        )

    def sample(
        self, extra_range: MemoryRange | None = None, *, running: bool = False, code: bool = False
    ) -> tuple[ThreadReading, ...]:
        """Read all threads, except those that end meanwhile.

        Args:
            extra_range: other memory to read during the stop of each thread.
            running: skip threads that neither run nor wait for a processor.
            code: also read each thread's instruction pointer.

        Raises:
            InspectorError: the process has ended, or may not be read.
        """
        tasks = [task for task in self._process.tasks() if task.is_running or not running]
        readings = self._visit(tasks, extra_range, code)
        if not readings and (tasks or not running):
            self._process.raise_if_ended()
        return tuple(readings)

    def sample_one(self, tid: int, extra_range: MemoryRange | None = None) -> ThreadReading | None:
        """Read one thread, with `extra_range` as in `sample`; return None if it has ended."""
        task = self._process.task(tid)
        readings = self._visit([task], extra_range, False) if task is not None else []
        return readings[0] if readings else None

    def _visit(self, tasks: Sequence[Task], extra_range: MemoryRange | None, code: bool) -> list[ThreadReading]:
        has_something_to_read = self._variables or extra_range
        by_tid = {task.tid: task for task in tasks if task.can_stop} if has_something_to_read else {}
        results = self._tracer.visit(tuple(by_tid), lambda tid: self._read_thread(by_tid[tid], extra_range, code))
        readings = []
        for task in tasks:
            reading = results.get(task.tid)
            if reading is not None:
                readings.append(reading)
            elif task.is_alive and (task.tid not in by_tid or task.tid in self._tracer.pending_tids):
                readings.append(ThreadReading(task.tid, task.name, None, None, was_stopped=False))
        return readings

    def _read_thread(self, task: Task, extra_range: MemoryRange | None, code: bool) -> ThreadReading | None:
        """Read a stopped thread; return None if it was killed meanwhile."""
        thread_pointer = self._tracer.thread_pointer(task.tid)
        if thread_pointer is None:
            return None
        try:
            published = self._thread_memory.published(thread_pointer, self._variables)
            memory = self._memory.read_bytes(*extra_range) if extra_range else b""
        except ProcessEndedError:
            return None
        instruction_pointer = self._tracer.instruction_pointer(task.tid) if code else None
        return ThreadReading(task.tid, task.name, *published, memory=memory, instruction_pointer=instruction_pointer)

    def _problems(self) -> list[Problem]:
        return [*self._search_result.problems, *self._storage_reading.problems]

    def _storage_pointer(self) -> int | None:
        publisher = self._search_result.publishers.get(Interface.ELASTIC)
        return None if publisher is None else publisher.process_wide

    def _read_storage(self) -> _StorageReading:
        pointer, address = self._storage_pointer(), None
        if pointer is None:
            return _StorageReading()
        try:
            address = self._memory.read_word(pointer)
            if not address:
                return _StorageReading(address, problems=(Problem(Interface.ELASTIC, "storage-null"),))
            storage = layouts.read_storage(self._memory.read, address)
        except (UnreadableError, MalformedError) as error:
            problem = Problem(Interface.ELASTIC, "storage-unreadable", str(error))
            return _StorageReading(address, problems=(problem,))
        problems = storage_problems(storage)
        socket = socket_problem(self.root, storage.socket_path)
        if socket is not None:
            problems.append(socket)
        return _StorageReading(address, storage, tuple(problems), socket is None)


def read(pid: int, *, strict_host: bool = False) -> Report:
    """Read process `pid` once; the arguments and errors are those of `Reader`."""
    with Reader(pid, strict_host=strict_host) as reader:
        return reader.read()


def _architecture(process: Process) -> Architecture:
    architecture = architecture_of(process.program_header(HEADER_BYTES))
    if architecture.name != platform.machine():
        raise UnsupportedError(f"its program is for {architecture.name} and this machine is {platform.machine()}")
    return architecture
