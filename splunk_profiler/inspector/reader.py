"""Reads a process as a host profiler would: from outside, by names and offsets, a moment at a time for each thread.

Everything runs on the thread that made the Reader (the kernel wants that of a tracer). Must not import anything of the
package but the inspector's own modules: a constant shared with the publisher would hide a shared mistake.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

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
from splunk_profiler.inspector.model import Interface, Problem, ProcessStorage, Reason, Report, ThreadReading
from splunk_profiler.inspector.process import Process, Task
from splunk_profiler.inspector.published import PublishedValues, ThreadMemory
from splunk_profiler.inspector.publishers import PublisherFinder, SearchResult, ThreadLocalVariable
from splunk_profiler.inspector.reasons import is_blocking, reasons_for
from splunk_profiler.inspector.sockets import socket_problem
from splunk_profiler.inspector.tracer import Tracer

_CLOSE_TIMEOUT_S = 1.0


MemoryRange = tuple[int, int]
"""(address, size) in the memory of the process."""


class Reader:
    """Reads process `pid`, any number of times.

        with Reader(pid) as reader:
            report = reader.read()        # everything, and what is wrong
            threads = reader.sample()     # only the threads, with what was learned of the process before
            thread = reader.sample_one(tid)

    Args:
        pid: the process.
        strict_host: give values as real host profilers see them, limits and all, not as the specifications say.
        interfaces: what to look for; threads stand shorter for less.

    Raises:
        InspectorError: what keeps it from being read (see `errors`).
    """

    def __init__(
        self, pid: int, *, strict_host: bool = False, interfaces: Collection[Interface] = tuple(Interface)
    ) -> None:
        self.pid = pid
        self.strict_host = strict_host
        self._process = Process(pid)
        architecture = _architecture(self._process)
        self._memory = Memory(self._process.live_tid)
        self._thread_memory = ThreadMemory(self._memory, architecture, strict_host)
        self._tracer = Tracer(pid, architecture)
        self._finder = PublisherFinder(self._process.proc_path, self._memory, architecture, interfaces)
        self._search_result = SearchResult()
        self._storage: ProcessStorage | None = None
        self._storage_address: int | None = None
        self._storage_problems: list[Problem] = []
        self._socket_problem: Problem | None = None
        self._variables: dict[Interface, ThreadLocalVariable] = {}
        self.refresh()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of a thread that slept in the kernel when it was asked to stop; the end of this process does too."""
        self._tracer.detach_pending(_CLOSE_TIMEOUT_S)

    def detach_pending(self) -> bool:
        """Let go of such threads if they stand by now; True if there are none. For whoever waits between reads."""
        return self._tracer.detach_pending()

    @property
    def command(self) -> str:
        """The name of the process."""
        return self._process.command

    @property
    def root(self) -> Path:
        """Where from outside the paths begin that the process names."""
        return self._process.proc_path / "root"

    @property
    def storage(self) -> ProcessStorage | None:
        """The process storage at the last look; None if there is none, in strict mode if a host profiler refuses it."""
        return None if self._is_storage_refused(self._collect_problems()) else self._storage

    def reasons(self) -> tuple[Reason, ...]:
        """Why, as of the last look, a host profiler would see less of the process, worst first; nothing of threads."""
        return reasons_for(self._collect_problems(), ())

    def code(self) -> list[Mapping]:
        """Where code lies in the process now, by ascending address."""
        return self._process.code()

    def has_storage_moved(self) -> bool:
        """Whether the process names another storage than at the last look: then `refresh`. A short question.

        Raises:
            ProcessEndedError: it has ended.
        """
        publisher = self._search_result.publishers.get(Interface.ELASTIC)
        if publisher is None or publisher.process_wide is None:
            return False
        try:
            return self._read_word(publisher.process_wide) != self._storage_address
        except UnreadableError:  # it became another program, unless the variable could not be read before either
            return self._storage_address is not None

    def refresh(self) -> None:
        """Look again at what is mapped, at the process storage and at its socket.

        Raises:
            InspectorError: what keeps the process from being read (see `errors`).
        """
        self._process.raise_if_ended()
        mappings, program = self._process.mappings(), self._process.program()
        search = self._finder.search(mappings, program)
        if all(problem.code == "library-not-loaded" for problem in search.problems) and not (
            search.publishers or runs_python(mappings)
        ):
            raise NotPythonError(f"process {self.pid} ({program}) does not run Python and publishes nothing")
        self._search_result = search
        self._read_storage()
        blocked_interfaces = (
            {problem.interface for problem in self._collect_problems() if is_blocking(problem)}
            if self.strict_host
            else set()
        )
        self._variables = {
            interface: publisher.variable
            for interface, publisher in search.publishers.items()
            if interface not in blocked_interfaces
            and publisher.variable is not None
            and self._thread_memory.can_follow(publisher)
        }

    def read(self) -> Report:
        """Everything, and why a host profiler would see less.

        Raises:
            InspectorError: what keeps the process from being read (see `errors`).
        """
        time_ns = time.time_ns()
        self.refresh()
        threads = self.sample()
        problems = self._collect_problems()
        blocked_interfaces = {problem.interface for problem in problems if is_blocking(problem)}
        if Interface.ELASTIC not in blocked_interfaces and not any(thread.correlation for thread in threads):
            problems.append(Problem(Interface.ELASTIC, "no-thread-publishes"))
        if Interface.LABELS not in blocked_interfaces and all(thread.labels is None for thread in threads):
            problems.append(Problem(Interface.LABELS, "no-thread-publishes"))
        return Report(
            pid=self.pid,
            command=self.command,
            time_ns=time_ns,
            strict_host=self.strict_host,
            libraries=tuple(publisher.library for publisher in self._search_result.publishers.values()),
            storage=self.storage,
            socket_accepted=None if self._storage is None else self._socket_problem is None,
            threads=threads,
            reasons=reasons_for(problems, threads),
        )

    def sample(
        self, extra_range: MemoryRange | None = None, *, only_running: bool = False, code: bool = False
    ) -> tuple[ThreadReading, ...]:
        """All threads; those that end meanwhile are left out.

        Args:
            extra_range: (address, size) of other memory to read of each thread while it stands.
            only_running: leave out, and do not stop, threads that neither run nor wait for a processor.
            code: note where in its code each thread stands.

        Raises:
            InspectorError: the process has ended, or may not be read.
        """
        tasks = [task for task in self._process.tasks() if task.is_running or not only_running]
        readings = self._visit(tasks, extra_range, code)
        if not readings and (tasks or not only_running):
            self._process.raise_if_ended()
        return tuple(readings)

    def sample_one(self, tid: int, extra_range: MemoryRange | None = None) -> ThreadReading | None:
        """One thread; None if it has ended. `extra_range` as in `sample`."""
        task = self._process.task(tid)
        readings = self._visit([task], extra_range, False) if task is not None else []
        return readings[0] if readings else None

    def _visit(self, tasks: Sequence[Task], extra_range: MemoryRange | None, code: bool) -> list[ThreadReading]:
        tids = [task.tid for task in tasks if task.can_stop] if self._variables or extra_range else []
        results = self._tracer.visit(tids, partial(self._read_thread, extra_range, code))
        readings = []
        for task in tasks:
            result = results.get(task.tid)
            if result is not None:
                published, memory, instruction_pointer = result
                readings.append(
                    ThreadReading(
                        task.tid,
                        task.name,
                        published.correlation,
                        published.labels,
                        published.problems,
                        memory=memory,
                        instruction_pointer=instruction_pointer,
                    )
                )
            elif task.is_alive and (task.tid not in tids or task.tid in self._tracer.pending_tids):
                readings.append(ThreadReading(task.tid, task.name, None, None, was_stopped=False))
        return readings

    def _read_thread(
        self, extra_range: MemoryRange | None, code: bool, tid: int
    ) -> tuple[PublishedValues, bytes, int | None] | None:
        thread_pointer = self._tracer.thread_pointer(tid)
        if thread_pointer is None:
            return None  # killed in the meantime
        try:
            published = self._thread_memory.published(thread_pointer, self._variables)
            memory = self._memory.read([extra_range])[0] if extra_range else b""
            return published, memory, self._tracer.instruction_pointer(tid) if code else None
        except ProcessEndedError:
            return None

    def _is_storage_refused(self, problems: Sequence[Problem]) -> bool:
        return self.strict_host and any(one.interface is Interface.ELASTIC and is_blocking(one) for one in problems)

    def _read_word(self, address: int) -> int:
        return layouts.decode_word(self._memory.read([(address, 8)])[0])

    def _collect_problems(self) -> list[Problem]:
        return [
            *self._search_result.problems,
            *self._storage_problems,
            *([self._socket_problem] if self._socket_problem is not None else []),
        ]

    def _read_storage(self) -> None:
        self._storage, self._storage_problems, self._socket_problem = None, [], None
        self._storage_address = None
        publisher = self._search_result.publishers.get(Interface.ELASTIC)
        if publisher is None or publisher.process_wide is None:
            return
        try:
            address = self._storage_address = self._read_word(publisher.process_wide)
            if not address:
                self._storage_problems = [Problem(Interface.ELASTIC, "storage-null")]
                return
            storage = layouts.read_storage(self._memory.read, address)
        except (UnreadableError, MalformedError) as error:
            self._storage_problems = [Problem(Interface.ELASTIC, "storage-unreadable", str(error))]
            return
        self._storage = storage
        self._storage_problems = storage_problems(storage)
        self._socket_problem = socket_problem(self.root, storage.socket_path)


def read(pid: int, *, strict_host: bool = False) -> Report:
    """Read process `pid` once (see `Reader`)."""
    with Reader(pid, strict_host=strict_host) as reader:
        return reader.read()


def _architecture(process: Process) -> Architecture:
    architecture = architecture_of(process.program_header(HEADER_BYTES))
    if architecture.name != platform.machine():
        raise UnsupportedError(f"its program is for {architecture.name} and this machine is {platform.machine()}")
    return architecture
