"""Reads of what one stopped thread publishes: thread pointer → variable → record and labels.

Runs on the tracer's thread, inside `Tracer.visit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from splunk_profiler.inspector import host, layouts
from splunk_profiler.inspector.architecture import Architecture
from splunk_profiler.inspector.errors import MalformedError, ProcessEndedError, UnreadableError
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import (
    CorrelationRecord,
    Interface,
    Label,
    Problem,
    ThreadLocalVariable,
    ThreadReading,
)
from splunk_profiler.inspector.proc_files import Task
from splunk_profiler.inspector.tracer import Tracer

_DTV_ENTRY_BYTES = 16
_DTV_UNALLOCATED = (1 << 64) - 1


class ThreadReader:
    """A reader of stopped threads, by the specifications or (strict) as host profilers."""

    def __init__(self, memory: Memory, architecture: Architecture, tracer: Tracer, strict_host: bool) -> None:
        self._memory = memory
        self._architecture = architecture
        self._tracer = tracer
        self._strict_host = strict_host

    def read(
        self, task: Task, variables: Mapping[Interface, ThreadLocalVariable], *, code: bool
    ) -> ThreadReading | None:
        """Read a stopped thread, with its instruction pointer if `code`; return None if it was killed meanwhile."""
        thread_pointer = self._tracer.read_register(task.tid, self._architecture.thread_pointer)
        if thread_pointer is None:
            return None
        problems: list[Problem] = []
        correlation, labels = None, None
        try:
            if Interface.ELASTIC in variables:
                correlation = self._read_record(thread_pointer, variables[Interface.ELASTIC], problems)
            if Interface.LABELS in variables:
                labels = self._read_labels(thread_pointer, variables[Interface.LABELS], problems)
        except ProcessEndedError:
            return None
        address = self._tracer.read_register(task.tid, self._architecture.instruction_pointer) if code else None
        return ThreadReading(task.tid, task.name, correlation, labels, tuple(problems), instruction_pointer=address)

    def _read_record(
        self, thread_pointer: int, variable: ThreadLocalVariable, problems: list[Problem]
    ) -> CorrelationRecord | None:
        try:
            address = self._read_pointer(thread_pointer, variable)
            record = layouts.read_record(self._memory.read, address) if address else None
        except UnreadableError as error:
            problems.append(Problem(Interface.ELASTIC, "record-unreadable", str(error)))
            return None
        found = host.record_problems(record) if record is not None else []
        problems += found
        return None if found and self._strict_host else record

    def _read_labels(
        self, thread_pointer: int, variable: ThreadLocalVariable, problems: list[Problem]
    ) -> tuple[Label, ...] | None:
        skew = self._architecture.host_labels_skew if self._strict_host else 0
        limits = host.HOST_LIMITS if self._strict_host else layouts.SPEC_LIMITS
        try:
            address = self._read_pointer(thread_pointer + skew, variable)
            labels = layouts.read_label_set(self._memory.read, address, limits) if address else None
        except (UnreadableError, MalformedError) as error:
            problems.append(Problem(Interface.LABELS, "labels-unreadable", str(error)))
            return None
        if labels is None:
            return None
        problems += host.label_problems(labels)
        return host.host_labels(labels) if self._strict_host else layouts.spec_labels(labels)

    def _read_pointer(self, thread_pointer: int, variable: ThreadLocalVariable) -> int:
        """Return the thread's value of `variable`, which must be found; 0 if it is not allocated yet."""
        read_word = self._memory.read_word
        if variable.offset is not None:
            return read_word(thread_pointer + variable.offset)
        assert variable.module is not None
        dtv = read_word(thread_pointer + self._architecture.dtv_offset)
        if variable.module > read_word(dtv - _DTV_ENTRY_BYTES):
            return 0  # the table is older than the library and grows at first use
        tls_block = read_word(dtv + variable.module * _DTV_ENTRY_BYTES)
        return 0 if tls_block in (0, _DTV_UNALLOCATED) else read_word(tls_block + variable.module_offset)
