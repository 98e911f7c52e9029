"""Reads of what one stopped thread publishes: thread pointer → variable → record and labels.

Runs on the tracer's thread, inside `Tracer.visit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from splunk_profiler.inspector import host, layouts
from splunk_profiler.inspector.architecture import Architecture
from splunk_profiler.inspector.errors import MalformedError, UnreadableError
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import CorrelationRecord, Interface, Label, Problem
from splunk_profiler.inspector.publishers import ThreadLocalVariable

_DTV_ENTRY_BYTES = 16
_DTV_UNALLOCATED = (1 << 64) - 1


class ThreadMemory:
    """A reader of published values, by the specifications or (strict) as host profilers."""

    def __init__(self, memory: Memory, architecture: Architecture, strict_host: bool) -> None:
        self._memory = memory
        self._architecture = architecture
        self._strict_host = strict_host

    def published(
        self, thread_pointer: int, variables: Mapping[Interface, ThreadLocalVariable]
    ) -> tuple[CorrelationRecord | None, tuple[Label, ...] | None, tuple[Problem, ...]]:
        """Return record, labels and problems of the stopped thread with `thread_pointer`."""
        problems: list[Problem] = []
        correlation, labels = None, None
        if Interface.ELASTIC in variables:
            try:
                correlation = self._read_record(thread_pointer, variables[Interface.ELASTIC], problems)
            except UnreadableError as error:
                problems.append(Problem(Interface.ELASTIC, "record-unreadable", str(error)))
        if Interface.LABELS in variables:
            try:
                labels = self._read_labels(thread_pointer, variables[Interface.LABELS], problems)
            except (UnreadableError, MalformedError) as error:
                problems.append(Problem(Interface.LABELS, "labels-unreadable", str(error)))
        return correlation, labels, tuple(problems)

    def _read_record(
        self, thread_pointer: int, variable: ThreadLocalVariable, problems: list[Problem]
    ) -> CorrelationRecord | None:
        address = self._read_pointer(thread_pointer, variable)
        if not address:
            return None
        record = layouts.decode_record(self._memory.read_bytes(address, layouts.RECORD_BYTES))
        found = host.record_problems(record)
        problems += found
        return None if found and self._strict_host else record

    def _read_labels(
        self, thread_pointer: int, variable: ThreadLocalVariable, problems: list[Problem]
    ) -> tuple[Label, ...] | None:
        skew = self._architecture.host_labels_skew if self._strict_host else 0
        address = self._read_pointer(thread_pointer + skew, variable)
        if not address:
            return None
        limits = host.HOST_LIMITS if self._strict_host else layouts.SPEC_LIMITS
        labels = layouts.read_label_set(self._memory.read, address, limits)
        problems += host.label_problems(labels)
        return host.host_labels(labels) if self._strict_host else layouts.spec_labels(labels)

    def _read_pointer(self, thread_pointer: int, variable: ThreadLocalVariable) -> int:
        """Return the thread's value of `variable`; 0 if it is not allocated yet."""
        read_word = self._memory.read_word
        if variable.offset is not None:
            return read_word(thread_pointer + variable.offset)
        dtv = read_word(thread_pointer + self._architecture.dtv_offset)
        if variable.module > read_word(dtv - _DTV_ENTRY_BYTES):
            return 0  # the table is older than the library and grows at first use
        tls_block = read_word(dtv + variable.module * _DTV_ENTRY_BYTES)
        return 0 if tls_block in (0, _DTV_UNALLOCATED) else read_word(tls_block + variable.module_offset)
