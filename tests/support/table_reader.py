"""A reader of the threads of a target, with the target's own record of their work.

    with TableReader(target.pid, address) as reader:
        for reading, table in reader.sample():
            judge.judge(reading, table)

Composed of the inspector's parts. Used by one thread, because the kernel ties stopped threads to their tracer.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from pathlib import Path

from host_reading import TABLE_BYTES

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import ThreadReading
from splunk_profiler.inspector.proc_files import read_task
from splunk_profiler.inspector.process import Process
from splunk_profiler.inspector.thread_reader import ThreadReader
from splunk_profiler.inspector.tracer import Tracer

_ARCHITECTURE = next(one for one in ARCHITECTURES if one.name == platform.machine())


class TableReader:
    """A reader of process `pid`, whose table lies at this address.

    Args:
        strict_host: read with the limits of real host profilers.
    """

    def __init__(self, pid: int, address: int, *, strict_host: bool = False) -> None:
        with Reader(pid, strict_host=strict_host) as reader:
            report = reader.read()
        self.variables = {
            library.interface: library.variable
            for library in report.libraries
            if library.variable.is_found and (report.is_visible(library.interface) or not strict_host)
        }
        self._address = address
        self._process = Process(pid)
        self._memory = Memory(pid)
        self._tracer = Tracer(pid)
        self._thread_reader = ThreadReader(self._memory, _ARCHITECTURE, self._tracer, strict_host)

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.detach_pending(1.0)

    def sample(self, tids: Collection[int] = ()) -> list[tuple[ThreadReading, bytes]]:
        """Read these threads, by default all, each with the table in the same stop."""
        folder = Path(f"/proc/{self._process.pid}/task")
        found_tasks = [read_task(folder / str(tid)) for tid in tids] if tids else self._process.tasks()
        tasks = {task.tid: task for task in found_tasks if task is not None and task.can_stop}

        def read(tid: int) -> tuple[ThreadReading | None, bytes]:
            reading = self._thread_reader.read(tasks[tid], self.variables, code=False)
            return reading, self._memory.read(self._address, TABLE_BYTES)

        found = self._tracer.visit(tuple(tasks), read).values()
        return [(reading, table) for reading, table in found if reading is not None]
